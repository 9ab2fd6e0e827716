#!/bin/bash
# shellcheck disable=SC2016  # the programs below are for a later bash
set -euo pipefail
# shellcheck source=tests/tools/check.sh
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"
need_python

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
  ln -s "$(command -v env)" "$fake/env"
  PATH=$fake ends_with 69 "$root/tools/report_picture" run
  says 'there is no Chromium here'
}

page_of() { echo "<style>:root { } * { box-sizing: border-box }</style><p class=verdict>$1</p>"; }

# A checkout with the real tool, a small page as report, and a browser whose screenshot is the word `picture`.
with_a_checkout() {
  mkdir checkout checkout/tools checkout/build run
  cp "$root"/tools/{report_picture,report_svg.py,devtools.py,files.py} checkout/tools/
  stand_in checkout/build/cifar_mpi_report <<<"echo '$(page_of 'a run')' >\"\$2\""
  cp "$root/tests/tools/browser_stand_in.py" "$fake/chromium"
  echo mine >precious
}
picture() { timeout 90 checkout/tools/report_picture "$@"; }

WritesThroughNoLinkAndWaitsForNoPipe() {
  local kind name
  with_a_checkout
  for kind in --svg --dark; do
    name=run/report.svg
    [ "$kind" = --svg ] || name=run/report.png
    ln -s ../precious "$name"
    ends_with 0 picture "$kind" run
    [ "$(cat precious)" = mine ] || fail "a link was written through: $(cat precious)"
    { [ -f "$name" ] && [ ! -L "$name" ] && [ -s "$name" ]; } || fail "$name is no picture"
    [ "$(stat -c %a "$name")" = "$(stat -c %a said)" ] || fail "$name has other permissions than a new file"
    rm "$name"
    mkfifo "$name"
    ends_with 0 picture "$kind" run
    [ -f "$name" ] || fail "$name is no picture"
  done
  [ "$(cat run/report.png)" = picture ] || fail "the picture is not the browser's"
  holds_only run report.png report.svg
}

DrawsNoPageThatStandsInTheRunDirectory() {
  with_a_checkout
  stand_in checkout/build/cifar_mpi_report <<<"echo '$(page_of ours)' >\"\$2\"; mkfifo run/report.html"
  ends_with 0 picture --svg run
  grep -q ours run/report.svg || fail "the picture is not of the page that the report wrote"
}

TakesNoStyleFromTheFilesOfARun() {
  with_a_checkout
  stand_in checkout/build/cifar_mpi_report <<'END'
echo '<title>:root { --ground: #666; } * { box-sizing</title>' >"$2"
printf '<style>\n:root { --ground: #fff; }\n.dark { --ground: #000; }\n* { box-sizing: border-box }\npath { fill: none }\n</style>\n' >>"$2"
printf '<pre>\npath { background: url(https://example.com/) }\n</pre><p class=verdict>a run</p>\n' >>"$2"
END
  ends_with 0 picture --svg run
  grep -qF 'path { fill: none }' run/report.svg || fail "the style of the page is missing: $(cat run/report.svg)"
  ! grep -qE 'example|#666' run/report.svg || fail "the text of the run became a style: $(cat run/report.svg)"
}

LeavesAFileAloneThatIsNotRegular() {
  with_a_checkout
  ln -s precious link
  mkfifo pipe
  local file
  for file in link pipe run /dev/null; do
    ends_with 2 picture --svg run "$file"
    says "$file is not a regular file"
  done
  { [ -L link ] && [ "$(cat precious)" = mine ]; } || fail "a link was written through or replaced"
  ends_with 0 picture --svg run precious
  [ "$(cat precious)" != mine ] || fail "a regular file was not replaced"
}

LeavesNothingWhereItCannotWrite() {
  with_a_checkout
  mkdir run/report.svg
  ends_with 1 picture --svg run
  says 'Is a directory'
  holds_only run report.svg
}

# browser_of USER: starts a Chromium that ends at once, as that user; its arguments are in the file `arguments`.
browser_of() {
  fake_program chromium <<<"printf '%s\\n' \"\$@\" >$here/arguments"
  chmod 777 . "$fake"
  python3 - "$1" "$root/tools" <<'END'
import os, sys
sys.path.insert(0, sys.argv[2])
sys.dont_write_bytecode = True
import devtools
if os.geteuid() != int(sys.argv[1]):
    os.setuid(int(sys.argv[1]))
try:
    devtools.Browser(devtools.find())
except OSError as error:
    print(error)
END
}

RunsTheBrowserInItsSandboxUnlessItIsRoot() {
  local user=$EUID
  [ "$user" != 0 ] || user=65534
  ends_with 0 browser_of "$user"
  says 'chromium does not start'
  says 'its sandbox needs user namespaces'
  grep -qx -- --headless arguments || fail "no browser was started"
  ! grep -q no-sandbox arguments || fail "it was started with: $(cat arguments)"
  [ "$EUID" = 0 ] || return 0
  rm arguments
  ends_with 0 browser_of 0
  says 'chromium does not start'
  says_not namespaces
  grep -qx -- --no-sandbox arguments || fail "root's has a sandbox, with which it does not start: $(cat arguments)"
}

"$1"
