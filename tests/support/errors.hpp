#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "support/contains.hpp"

namespace cifar_mpi {

/// The text of the Error that `action` throws, which must be of `kind`; "" if it throws none.
inline std::string refusal(ErrorKind kind, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.kind()), exit_code(kind)) << error.what();
    return error.what();
  }
  return "";
}

/// Expects an Error of `kind` whose text holds every one of `parts`.
inline void expect_error(ErrorKind kind, const std::vector<std::string>& parts,
                         const std::function<void()>& action) {
  const std::string text = refusal(kind, action);
  EXPECT_NE(text, "") << "expected an error";
  for (const std::string& part : parts) EXPECT_TRUE(contains(text, part));
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

}  // namespace cifar_mpi
