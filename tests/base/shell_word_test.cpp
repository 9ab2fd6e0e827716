#include "cifar_mpi/base/shell_word.hpp"

#include <gtest/gtest.h>

namespace cifar_mpi {
namespace {

TEST(ShellWord, StandsForItselfInAnyShell) {
  EXPECT_EQ(shell_word("runs/a-1.h5"), "runs/a-1.h5");
  EXPECT_EQ(shell_word("a b; rm 'c'"), "'a b; rm '\\''c'\\'''");
  EXPECT_EQ(shell_word(""), "''");
}

}  // namespace
}  // namespace cifar_mpi
