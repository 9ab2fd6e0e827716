#!/bin/bash
set -euo pipefail
# shellcheck source=tests/tools/check.sh
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"

shaped_nodes=$root/tools/shaped_nodes
links() { ip -o link show | cut -d: -f2 | sort; }
needs_namespaces() {
  local status=0
  "$shaped_nodes" -- true >said 2>&1 || status=$?
  [ "$status" != 77 ] || { cat said; exit 77; }
}

RefusesNonsense() {
  ends_with 2 "$shaped_nodes" --nodes 1 -- true
  says --nodes
  ends_with 2 "$shaped_nodes" --rate=1gbit --nodes=1 -- true --rate=x
  says "--nodes must be a whole number from 2 to 99, not '1'"
  ends_with 2 "$shaped_nodes" --ranks 0 -- true
  ends_with 2 "$shaped_nodes" --rate fast -- true
  ends_with 2 "$shaped_nodes" --ranks
  ends_with 2 "$shaped_nodes"
  says 'no program given'
}

StartsRanksOnNodesWithShapedLinks() {
  needs_namespaces
  ends_with 0 "$shaped_nodes" --nodes 3 --ranks 2 --rate 300mbit -- \
    sh -c 'echo "rank on $(hostname) $(tc qdisc show dev eth0 | grep -c "tbf .*rate 300Mbit")"'
  for node in node1 node2 node3; do
    [ "$(grep -cx "rank on $node 1" said)" = 2 ] || fail "expected two ranks on $node, each with a shaped link"
  done
}

KeepsTheFoldersOfMpirunToItself() {
  needs_namespaces
  ends_with 0 "$shaped_nodes" -- sh -c 'ls -d /run/*node1*.0 /tmp/*node1*.0 2>&1'
  grep -q '^/run/.*node1' said || fail 'mpirun has no folder for this node'
  ! grep -q '^/tmp/.*node1' said || fail 'mpirun uses a folder that other shaped nodes may use too'
}

StartsAProgramOnceThatStartsRanksItself() {
  needs_namespaces
  # shellcheck disable=SC2016  # for the shell on the first node
  ends_with 3 "$shaped_nodes" --nodes 3 --once -- sh -c 'echo "once on $(hostname)"
    mpirun --host node3:1,node2:1 -np 2 sh -c "echo rank on \$(hostname)"; exit 3'
  [ "$(grep -E '^(once|rank) on ' said | sort)" = "$(printf '%s\n' 'once on node1' 'rank on node2' 'rank on node3')" ] || fail 'other starts were expected'
}

PassesOnTheExitStatus() {
  needs_namespaces
  ends_with 75 "$shaped_nodes" -- sh -c 'exit 75'
}

start_and_wait() {  # start_and_wait PROGRAM...: waits until the program makes the file `started`; sets $pid
  "$shaped_nodes" -- "$@" >said 2>&1 &
  pid=$!
  for _ in $(seq 600); do [ ! -e started ] || break; sleep 0.1; done
  [ -e started ] || fail 'nothing was started'
}

PassesSignalsOn() {
  needs_namespaces
  start_and_wait sh -c 'trap "echo was asked; exit 7" USR1; touch started; while :; do sleep 0.1; done'
  local status=0
  kill -USR1 "$pid"
  wait "$pid" || status=$?
  [ "$status" = 7 ] || fail "expected exit status 7, not $status"
  says 'was asked'
}

LeavesTheMachineAloneWhenItsInsideIsCalledFromOutside() {
  needs_namespaces
  local arguments
  # in namespaces, so that nothing is harmed if it does not refuse
  for arguments in '2 1 none true' 'mnt:[1] net:[1] 2 1 none 1 true' ''; do
    # shellcheck disable=SC2086
    ends_with 2 timeout 60 unshare --net --mount bash -c '"$@" || status=$?; findmnt -n /run | grep -q tmpfs && mount | grep hosts
      exit ${status-0}' bash "$shaped_nodes" --inside $arguments
    says '--inside is for shaped_nodes itself'
    says_not hosts
  done
}

LeavesNothingBehindWhenKilled() {
  needs_namespaces
  local before inside
  before=$(links)
  start_and_wait sh -c 'touch started; exec sleep 1000'
  inside=$(cat "/proc/$pid/task/$pid/children")
  inside+=" $(cat "/proc/${inside% }/task/${inside% }/children")"
  kill -KILL "$pid"
  wait "$pid" || true
  for process in $inside; do
    for _ in $(seq 300); do kill -0 "$process" 2>/dev/null || continue 2; sleep 0.1; done
    fail 'the namespaces outlive the tool'
  done
  [ "$(links)" = "$before" ] || fail 'other network links than before'
}

"$1"
