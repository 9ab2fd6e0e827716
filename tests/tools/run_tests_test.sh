#!/bin/bash
# run_ctest of tools/lib.sh on made-up tests.
set -euo pipefail
# shellcheck source=tests/tools/check.sh
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"
unset CI CI_STARTED CTEST_PARALLEL_LEVEL

# tests_are 'NAME COMMAND'...: a folder `build` with these tests
tests_are() {
  local test
  mkdir -p build
  for test; do printf 'add_test(%s sh -c [[%s]])\n' "${test%% *}" "${test#* }"; done >build/CTestTestfile.cmake
}
export disturbed=1
run() { ends_with "$1" bash -euo pipefail -c '. "$0/tools/lib.sh"; build=$PWD/build; run_ctest "${@}"' "$root" "${@:2}"; }

PassesATestThatPassesAlone() {
  tests_are 'steady true' 'disturbed [ -e second ] || { touch second; false; }'
  run 0 -j 2
  says '== these tests failed and run again, each alone: disturbed'
  says '50% tests passed, 1 tests failed out of 2'
  [ "$(grep -A 1 -m 1 '^100% tests passed' said | head -n 1)" = '100% tests passed, 0 tests failed out of 1' ] || fail 'no summary'
}

FailsATestThatFailsAloneToo() {
  tests_are 'steady true' 'broken echo run >>runs; false' 'disturbed [ -e second ] || { touch second; false; }'
  run 8
  says '== these tests failed and run again, each alone: broken disturbed'
  tail -n 4 said | grep -q 'broken (Failed)' || fail 'the summary does not end with what failed'
  [ "$(wc -l <build/runs)" = 2 ] || fail 'the broken test did not run twice'
}

RunsManyFailuresOnce() {
  tests_are 'a echo >>runs; false' 'b false' 'c false' 'd false' 'e false' 'f false'
  run 8
  says_not 'run again'
  says '0% tests passed, 6 tests failed out of 6'
  [ "$(wc -l <build/runs)" = 1 ] || fail 'a test ran again'
}

RunsOnceWhatFindsFaultsByChance() {
  tests_are 'Hostile.Dataset [ -e second ] || { touch second; false; }'
  run 8
  says_not 'run again'
  # under sanitizers, for example
  tests_are 'disturbed [ -e third ] || { touch third; false; }'
  disturbed='' run 8
  says_not 'run again'
}

SaysWhatTookLongestWhereItIsContinuousIntegration() {
  tests_are 'steady true'
  CI=true run 0
  says '0 minutes since the start'
  says '  steady'
  tail -n 5 said | grep -q '^100% tests passed' || fail 'it does not end with the summary'
}

"$1"
