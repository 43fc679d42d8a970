// `syncline bench`: benchmarks. Each reports the machine's own copy bandwidth beside its
// result, and checks what it computes. Each prints a table, or with --json one object of
// the same form:
//   {"bench", "machine": {cores, isa, copy_gbs}, "settings": {...},
//    "seconds": {median, p10, p90}, "goodput_gbs", "cpu_seconds",
//    "processes": [{name, cpu_seconds, peak_rss_bytes}], ...}
#pragma once

#include "CLI/App.hpp"
#include "cli/command.h"

namespace syncline {

void AddBench(CLI::App& app, Command* selected);

}  // namespace syncline
