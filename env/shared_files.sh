# shellcheck shell=bash
# Sourced by the jobs and the tools: how they read and write files in folders where others may write too, such as a run
# directory. Nothing that stands in such a file is computed with, and no link that lies there is written through.

# own FILE: whether it is a file that can be read without following or waiting for anything.
own() { [ -f "$1" ] && [ ! -L "$1" ] && [ -r "$1" ]; }

# number_in FILE: what stands there when that is a whole number of at most six digits, else nothing.
number_in() {
  local digits=''
  ! own "$1" || { digits=$(head -c 8 "$1"); } 2>/dev/null  # bash speaks of bytes that it leaves out
  [[ ! $digits =~ ^[0-9]{1,6}$ ]] || echo "$((10#$digits))"
}

# first_line_of FILE: at most 4096 characters of it.
first_line_of() {
  local line=''
  ! own "$1" || { line=$(head -c 4096 "$1"); } 2>/dev/null
  printf '%s' "${line%%$'\n'*}"
}

# replace FILE: its content becomes what standard input has, at once; a link that bears its name goes.
replace() {
  local new
  new=$(mktemp "$1.XXXXXX") || return
  # as a plain > would make it
  if cat >"$new" && chmod +rw "$new" && mv -fT "$new" "$1"; then return; fi
  rm -f "$new"
  return 1
}

# plain TEXT: the same without what would steer a terminal (C0, DEL, C1 in UTF-8) or begin a line.
plain() {
  local LC_ALL=C text=$*
  text=${text//[[:cntrl:]]/?}
  printf '%s' "${text//$'\302'[$'\200'-$'\237']/?}"
}
