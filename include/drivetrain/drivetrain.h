// SPDX-License-Identifier: Apache-2.0
// Everything, for a program's single include.
#pragma once

#include <drivetrain/accelerator.h>
#include <drivetrain/activation_checkpoint.h>
#include <drivetrain/comm.h>
#include <drivetrain/config.h>
#include <drivetrain/data.h>
#include <drivetrain/error.h>
#include <drivetrain/hardware.h>
#include <drivetrain/local_sgd.h>
#include <drivetrain/memory.h>
#include <drivetrain/nested.h>
#include <drivetrain/optimizer.h>
#include <drivetrain/parallel.h>
#include <drivetrain/precision.h>
#include <drivetrain/prepared.h>
#include <drivetrain/progress.h>
#include <drivetrain/schedule.h>
