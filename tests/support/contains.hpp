#pragma once

#include <gtest/gtest.h>

#include <string_view>

namespace cifar_mpi {

/// Whether `part` is in `text`; an expectation that fails shows both.
inline ::testing::AssertionResult contains(std::string_view text, std::string_view part) {
  const bool found = text.find(part) != std::string_view::npos;
  return ::testing::AssertionResult(found)
         << '"' << part << (found ? "\" is in\n" : "\" is not in\n") << text;
}

}  // namespace cifar_mpi
