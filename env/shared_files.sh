# shellcheck shell=bash
# Sourced by the jobs and the tools: how they read and write files in folders where others may write too, such as a run
# directory. Nothing that stands in such a file is computed with, and no link that lies there is written through.

# start_of FILE BYTES: the start of a file. Opens it once; of a link, a folder or a pipe without a writer it prints nothing and does not wait.
start_of() { dd if="$1" iflag=nofollow,nonblock bs="$2" count=1 status=none 2>/dev/null; }

# number_in FILE: what stands there when that is a whole number of at most six digits, else nothing.
number_in() {
  local digits=''
  { digits=$(start_of "$1" 8) || true; } 2>/dev/null  # bash speaks of bytes that it leaves out
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

# replace FILE: makes standard input its content, at once; a link of that name is replaced. The new file has a name that nobody can
# guess, and under set -C the shell creates and opens it in one call, which fails where that name exists.
replace() {
  local new
  new=$(mktemp -u -- "$1.XXXXXXXXXXXX") || return
  if (set -C; cat >"$new") && mv -fT -- "$new" "$1"; then return; fi
  rm -f -- "$new"
  return 1
}

# plain TEXT: the same without what would steer a terminal (C0, DEL, C1 in UTF-8) or begin a line.
plain() {
  local LC_ALL=C text=$*
  text=${text//[[:cntrl:]]/?}
  printf '%s' "${text//$'\302'[$'\200'-$'\237']/?}"
}
