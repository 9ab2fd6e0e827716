#pragma once

#include <string>

namespace cifar_mpi {

/// Seconds on the steady clock; only differences mean anything.
double steady_seconds();

/// Local wall time as "2026-11-20 06:17:35.123"; for people and provenance, never for intervals.
std::string wall_time();

}  // namespace cifar_mpi
