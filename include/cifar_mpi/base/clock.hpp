#pragma once

#include <cstdint>
#include <string>

namespace cifar_mpi {

/// Seconds on the steady clock; only differences mean anything.
double steady_seconds();
/// The same clock in nanoseconds. All processes of a machine read one clock (CLOCK_MONOTONIC).
std::int64_t steady_nanoseconds();

/// Wall-clock seconds since 1970, comparable with modification times of files.
double wall_seconds();
/// Local wall time as "2026-11-20 06:17:35.123"; for people and provenance, never for intervals.
std::string wall_time();

}  // namespace cifar_mpi
