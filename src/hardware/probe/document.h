// SPDX-License-Identifier: Apache-2.0
// What LibTorch and the registry say, as one JSON object.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace drivetrain::probe {

using Json = nlohmann::ordered_json;

// Told of each step before it is made, so that a crash or a hang can be placed.
using Step = std::function<void(const std::string&)>;

// Never throws for what a device or its driver does: such errors are part of the document.
Json make_document(const Step& step);

// A driver's or a vendor's library's facts of a backend that LibTorch has no call for:
// "driver_runtime" (the newest runtime that the driver takes), "peers" (for each device those that
// it reaches directly). Empty where there are none.
Json vendor_facts(const std::string& backend, int devices);

// c10d's backends: {"name", "built", "version"} each.
Json communication_backends();

}  // namespace drivetrain::probe
