# shellcheck shell=bash
# Sourced by the jobs and the tools to read and write files in folders where others may write, such as a run
# directory. The content of such a file is never evaluated, and no link there is followed for writing.

# start_of FILE BYTES: the start of a file. Opens it once; prints nothing for a link, a folder or a pipe without a
# writer, and does not wait.
start_of() { dd if="$1" iflag=nofollow,nonblock bs="$2" count=1 status=none 2>/dev/null; }

# number_in FILE: its content if that is a whole number of at most six digits, else nothing.
number_in() {
  local digits=''
  { digits=$(start_of "$1" 8) || true; } 2>/dev/null  # bash warns of NUL bytes that it drops
  [[ ! $digits =~ ^[0-9]{1,6}$ ]] || echo "$((10#$digits))"
}

# first_line_of FILE: at most 4096 characters of it.
first_line_of() {
  local line=''
  { line=$(start_of "$1" 4096) || true; } 2>/dev/null
  printf '%s' "${line%%$'\n'*}"
}

# newest_checkpoint RUN_DIR: the file of the highest step, or nothing. Links and other names do not count.
newest_checkpoint() {
  find "$1/checkpoints" -maxdepth 1 -type f -regextype posix-extended -regex '.*/step_[0-9]+\.h5' 2>/dev/null | sort -V | tail -n 1
}

# replace FILE: atomically replaces its content with standard input; a link of that name is replaced. The new file has a
# name that cannot be guessed, and under set -C the shell creates and opens it in one call, which fails where that name
# exists.
replace() {
  local new
  new=$(mktemp -u -- "$1.XXXXXXXXXXXX") || return
  if (set -C; cat >"$new") && mv -fT -- "$new" "$1"; then return; fi
  rm -f -- "$new"
  return 1
}

# plain TEXT: the same without terminal control characters (C0, DEL, C1 in UTF-8) and line breaks.
plain() {
  local LC_ALL=C text=$*
  text=${text//[[:cntrl:]]/?}
  printf '%s' "${text//$'\302'[$'\200'-$'\237']/?}"
}
