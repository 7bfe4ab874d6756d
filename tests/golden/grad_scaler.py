#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records the scales of torch.amp.GradScaler, as tests/precision/grad_scaler_golden.h.

usage: grad_scaler.py > ../precision/grad_scaler_golden.h

One parameter whose gradient is 1, or infinite where the pattern has a 1. The scales are those
before the first step and after each update.
"""

import torch

CASES = [
    ((65536.0, 2.0, 0.5, 2000), "1100"),
    ((65536.0, 2.0, 0.5, 3), "000000100001000"),
    ((1000.0, 1.5, 0.7, 2), "0010000110000010"),
    ((3.0, 2.5, 0.3, 1), "01010011"),
    ((2.0**-3, 2.0, 0.25, 4), "111100001111"),
]


def scales_of(options, pattern):
    init, growth, backoff, interval = options
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=init, growth_factor=growth,
                                  backoff_factor=backoff, growth_interval=interval)
    scales = [scaler.get_scale()]
    scaler.scale(torch.ones(1))
    for overflow in pattern:
        parameter.grad = torch.full((1,), float("inf") if overflow == "1" else 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def main():
    print("// SPDX-License-Identifier: Apache-2.0")
    print(f"// Recorded from torch {torch.__version__.split('+')[0]} by tests/golden/grad_scaler.py.")
    print("#pragma once\n\n#include <drivetrain/precision.h>\n\n#include <vector>\n")
    print("namespace drivetrain {\n\nstruct RecordedScales {\n  GradScalerOptions options;\n"
          "  const char* pattern;\n  std::vector<double> scales;\n};\n")
    print("// clang-format off\ninline const RecordedScales kRecordedScales[] = {")
    for options, pattern in CASES:
        scales = ", ".join(repr(scale) for scale in scales_of(options, pattern))
        print(f'    {{{{{", ".join(map(str, options))}}}, "{pattern}",\n     {{{scales}}}}},')
    print("};\n// clang-format on\n\n}  // namespace drivetrain")


if __name__ == "__main__":
    main()
