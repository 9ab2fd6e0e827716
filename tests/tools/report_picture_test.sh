#!/bin/bash
set -euo pipefail
# shellcheck source=tests/tools/check.sh
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"
command -v python3 >/dev/null || { echo "skipped: there is no python3 here"; exit 77; }

ExplainsItself() {
  ends_with 0 "$root/tools/report_picture" --help
  says '--dark'
  says 'Exit status'
}

WantsARun() {
  ends_with 2 "$root/tools/report_picture"
  says 'name a run directory'
  ends_with 2 "$root/tools/report_picture" run --height -1
}

SaysWhatIsMissing() {
  ln -s "$(python3 -c 'import sys; print(sys.executable)')" "$fake/python3"
  ln -s "$(command -v env)" "$fake/env"
  PATH=$fake ends_with 69 "$root/tools/report_picture" run
  says 'there is no Chromium here'
}

"$1"
