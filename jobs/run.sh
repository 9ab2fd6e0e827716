# shellcheck shell=bash
# Shared by the job files, which source it inside a SLURM job:  . jobs/run.sh [OPTION OF cifar_mpi_train...]
#
# Starts the ranks, forwards SIGUSR1 and SIGTERM to them, and decides by RUN_DIR/exit whether the job ends, fails with a
# permanent error, or returns to the queue. jobs/README.md is for users.
set -u
[ -n "${SLURM_JOB_ID-}" ] || { echo "run.sh: the job files source this file; submit one of them: sbatch jobs/cifar10_1node.slurm" >&2; exit 2; }

say() { printf '== %s job %s, start %s: %s\n' "$(date '+%F %T')" "$SLURM_JOB_ID" "$((restarts + 1))" "$(plain "$*")"; }
stop() { local code=$1; shift; say "$*"; exit "$code"; }

# The run directory: from the options, or else one per job, which a restart of the job finds again.
find_run_dir() {
  local option before=
  run_dir=
  for option in "$@"; do
    [ "$before" != --run-dir ] || run_dir=$option
    [[ $option != --run-dir=* ]] || run_dir=${option#*=}
    before=$option
  done
  own_options=()
  if [ -z "$run_dir" ]; then
    run_dir=runs/$SLURM_JOB_NAME-$SLURM_JOB_ID
    own_options=(--run-dir "$run_dir")
    [ ! -L "$run_dir" ] || stop 2 "$run_dir is a symbolic link that this job did not make; name the run directory with --run-dir."
  fi
  mkdir -p "$run_dir" || stop 5 "the run directory $run_dir cannot be created; name another one with --run-dir."
}

# The GPUs of a node where Slurm counts none (no GRES): its device files, but no more than CUDA_VISIBLE_DEVICES names.
uncounted_gpus() {
  local files visible
  if [[ $(scontrol show node "${SLURMD_NODENAME:-$HOSTNAME}" 2>/dev/null) = *Gres=*gpu* ]]; then
    echo 0  # Slurm counts this node's GPUs and gave the job none
    return
  fi
  files=$(find /dev -maxdepth 1 -name 'nvidia[0-9]*' -type c | wc -l)
  visible=${CUDA_VISIBLE_DEVICES-}
  visible=$(wc -w <<<"${visible//,/ }")
  if [ -n "${CUDA_VISIBLE_DEVICES+set}" ] && [ "$visible" -lt "$files" ]; then files=$visible; fi
  echo "$files"
}

# One rank per GPU; without GPUs one per NUMA domain, whose cores its threads share. --ntasks-per-node overrides both.
count_ranks() {
  local total=${SLURM_GPUS-}
  gpus=${SLURM_GPUS_ON_NODE:-0}
  total=${total##*:}  # of TYPE:NUMBER
  if [[ $total =~ ^[0-9]+$ ]] && [ "$total" != $((gpus * SLURM_JOB_NUM_NODES)) ]; then
    stop 2 "--gpus=$SLURM_GPUS gives the $SLURM_JOB_NUM_NODES nodes different numbers of GPUs; ask for --gpus-per-node instead."
  fi
  # mpirun starts its daemons with srun, which must request the GPUs that --exclusive gave
  [ "$gpus" = 0 ] || export SLURM_GPUS_PER_NODE=${SLURM_GPUS_PER_NODE:-$gpus}
  # With these, srun would hide from a rank the GPUs of its neighbours, which NCCL must reach.
  unset SLURM_GPUS SLURM_GPUS_PER_TASK SLURM_TRES_PER_TASK SLURM_NTASKS_PER_GPU SLURM_GPU_BIND SLURM_TRES_BIND
  [ "$gpus" != 0 ] || gpus=$(uncounted_gpus)
  if [ -n "${SLURM_NTASKS_PER_NODE-}" ]; then
    ranks_per_node=$SLURM_NTASKS_PER_NODE
  elif [ "$gpus" -gt 0 ]; then
    ranks_per_node=$gpus
  else
    ranks_per_node=$(lscpu -p=NODE | grep -v '^#' | sort -u | wc -l)
  fi
}

warn_of_idle_gpus() {
  [ "$ranks_per_node" -ge "$gpus" ] || [[ " $* " = *' --device cpu '* || " $* " = *' --device=cpu '* ]] ||
    say "warning: $ranks_per_node ranks leave $((gpus - ranks_per_node)) of the $gpus GPUs of a node idle; leave out --ntasks-per-node."
}

# Slurm has restarted jobs without their GPUs after a node failure; the run would then continue on CPUs.
check_layout() {
  local layout="$SLURM_JOB_NUM_NODES nodes, $ranks_per_node ranks and $gpus GPUs on each" before
  before=$(first_line_of "$run_dir/layout")
  if [ "$restarts" -gt 0 ] && [ -n "$before" ] && [ "$before" != "$layout" ]; then
    say "Slurm gave $layout; before the restart it was $before."
    go_on_later
  fi
  replace "$run_dir/layout" <<<"$layout"
  say "$layout; run directory $run_dir"
}

choose_launcher() {
  local launcher
  mpirun=$(sed -n 's/^MPIEXEC_EXECUTABLE:FILEPATH=//p' "$CIFAR_MPI_BIN/CMakeCache.txt" 2>/dev/null)
  case $mpirun in
    */srun) mpirun= ;;  # FindMPI falls back to srun, whose options differ
    *) [ -x "$mpirun" ] || mpirun=$(command -v mpirun) ;;
  esac
  read -ra srun_options <<<"$CIFAR_MPI_SRUN_OPTIONS"
  launchers=()
  case $CIFAR_MPI_LAUNCHER in
    auto) set -- mpirun srun ;;
    mpirun | srun) set -- "$CIFAR_MPI_LAUNCHER" ;;
    *) stop 2 "CIFAR_MPI_LAUNCHER must be auto, mpirun or srun, not '$CIFAR_MPI_LAUNCHER'." ;;
  esac
  if [ ${#srun_options[@]} -gt 0 ]; then
    [ "$CIFAR_MPI_LAUNCHER" != mpirun ] || stop 2 "CIFAR_MPI_SRUN_OPTIONS needs srun; set CIFAR_MPI_LAUNCHER=srun."
    set -- srun
  fi
  case $CIFAR_MPI_BIND in
    none) cpu_bind=none ;;
    core | socket) cpu_bind=${CIFAR_MPI_BIND}s ;;
    numa) cpu_bind=ldoms ;;
    *) stop 2 "CIFAR_MPI_BIND must be none, core, numa or socket, not '$CIFAR_MPI_BIND'." ;;
  esac
  for launcher in "$@"; do ! can_start_with "$launcher" || launchers+=("$launcher"); done
  [ ${#launchers[@]} -gt 0 ] ||
    stop 10 "CIFAR_MPI_LAUNCHER is $CIFAR_MPI_LAUNCHER, but there is no mpirun here, or srun has no pmix; load the MPI module in env/site.sh."
}
can_start_with() { case $1 in mpirun) [ -n "$mpirun" ] ;; srun) [[ $(srun --mpi=list 2>&1) = *pmix* ]] ;; esac; }

# A node that lost power keeps the socket of srun's pmix, named by job and step, and no step of that name starts there
# again (Slurm 22.05). A restart numbers its steps from 0 anew; one empty step per earlier start gives it another name.
skip_used_steps() {
  local n
  for ((n = 0; n < restarts; ++n)); do srun_quietly --nodes=1 --ntasks=1 true; done
}

# srun_quietly OPTION... COMMAND: runs COMMAND concurrently with other steps, without GPUs and MPI.
srun_quietly() { env -u SLURM_GPUS_PER_NODE timeout 30 srun --overlap --mpi=none --gres=none "$@" >/dev/null 2>&1; }

# An mpirun that is asked to stop gives the ranks twice this many seconds: SIGCONT, which cifar_mpi_train takes as the
# notice, then SIGTERM, then SIGKILL. It also sleeps that long after any failure, which is acceptable in a job but not
# at a terminal. Only OpenMPI 4 has it.
export OMPI_MCA_odls_base_sigkill_timeout=${OMPI_MCA_odls_base_sigkill_timeout:-15}

# has_child PID: whether the process has a child that is not a zombie; also true if /proc does not list children.
has_child() {
  local children child state
  children=$(cat "/proc/$1/task"/*/children 2>/dev/null) || return 0
  for child in $children; do
    read -r _ _ state _ <"/proc/$child/stat" && [ "$state" != Z ] && return 0
  done 2>/dev/null
  return 1
}

# end_if_childless PID: ends an mpirun that hangs. A live one has the ranks of this node and its daemons' srun or ssh as children.
# That of Open MPI 4.1.4 may wait forever, without children, after it has lost a daemon; the job would keep its nodes until the
# time limit.
end_if_childless() {
  local limit=$((60 + 2 * OMPI_MCA_odls_base_sigkill_timeout)) seconds=0
  trap '' USR1 TERM
  while sleep 10 >/dev/null 2>&1 && kill -0 "$1" 2>/dev/null; do
    ! has_child "$1" || seconds=-10
    seconds=$((seconds + 10))
    [ "$seconds" -ge "$limit" ] || continue
    say "mpirun has had no rank and no daemon for $seconds s; ending it."
    kill -KILL "$1"
    return
  done
}

# start LAUNCHER OPTION...: starts the ranks; returns the launcher's status, or 75 if the job was asked to stop before they started. SIGUSR1
# requests a checkpoint and an exit.
start() {
  local launcher=$1 child='' watch='' status=0 signalled='' command
  shift
  case $launcher in
    mpirun) command=("$mpirun" --map-by "ppr:$ranks_per_node:node:oversubscribe" --bind-to "$CIFAR_MPI_BIND") ;;
    srun)
      skip_used_steps
      command=(srun --mpi=pmix --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node="$ranks_per_node" --overcommit
        --ntasks="$((SLURM_JOB_NUM_NODES * ranks_per_node))" --cpu-bind="$cpu_bind" --gpu-bind=none --kill-on-bad-exit=1
        ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} "${srun_options[@]}") ;;
  esac
  trap 'signalled=1; [ -z "$child" ] || kill -USR1 "$child" 2>/dev/null' USR1 TERM
  if [ -n "$slurm_ends_us" ]; then  # before the ranks existed
    trap note_signal USR1 TERM
    say "asked to stop before the ranks were started."
    return 75
  fi
  say "${command[*]} cifar_mpi_train $*"
  "${command[@]}" "$CIFAR_MPI_BIN/cifar_mpi_train" "$@" </dev/null &
  child=$!
  if [ "$launcher" = mpirun ]; then
    end_if_childless "$child" &
    watch=$!
    disown
  fi
  [ -z "$signalled" ] || kill -USR1 "$child" 2>/dev/null  # the signal came before child was set
  signalled=1
  while [ -n "$signalled" ]; do  # a signal ends the wait, not the ranks
    signalled=
    wait "$child"
    status=$?
  done
  [ -z "$watch" ] || kill -KILL "$watch" 2>/dev/null
  trap note_signal USR1 TERM
  return "$status"
}

mark_of() { stat -c '%i %y' "$@" 2>/dev/null; }  # changes when one of these files is written
exit_known() { [[ "$(first_line_of "$run_dir/exit")" =~ ^([0-9]{1,3})\ (.*) ]]; }  # with the fields in BASH_REMATCH
job_state() { squeue -h -j "$SLURM_JOB_ID" -o %T 2>/dev/null; }

# train OPTION...: sets code and sentence, from the program's record if it could write one. mpirun changes codes.
train() {
  local launcher end all
  for launcher in "${launchers[@]}"; do
    end=$(mark_of "$run_dir/exit") all=$(mark_of "$run_dir"/{exit,lock})
    start "$launcher" "$@"
    code=$? sentence="$launcher ended with $code and the program left no record."
    if [ "$(mark_of "$run_dir/exit")" != "$end" ] && exit_known; then
      code=$((10#${BASH_REMATCH[1]})) sentence=${BASH_REMATCH[2]}
    else
      judge_launcher "$all" "$@"
    fi
    [ "$code" = 10 ] || break  # these ranks did not find each other: try the other launcher
  done
}

# judge_launcher MARK OPTION...: sets code from that of the launcher; MARK is the mark of the program's files before the start.
judge_launcher() {
  local mark=$1
  shift
  case $code in
    [2-9] | 10 | 75) return ;;  # the program's
    0) [[ " $* " != *' --self-check only '* ]] || return ;;  # which writes no record
    129 | 1[3-8][0-9] | 19[0-2]) ;;  # a signal ended it
    *)
      # A rank takes the run directory as soon as MPI is up.
      if [ "$(mark_of "$run_dir"/{exit,lock})" = "$mark" ] && nodes_answer; then
        sentence="$launcher ended with $code before any rank took the run directory; see its messages above, and use the launcher of the MPI that the programs were built with."
        code=10
        return
      fi ;;
  esac
  code=7  # killed, or lost: Open MPI 5 has returned 0 after a node was lost
}

# Whether every node of the job can still start a program.
nodes_answer() { srun_quietly --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 true; }

# After a failure that a node may have caused. A job that requeues itself before Slurm has noticed a dead node restarts
# without its GPUs, so Slurm must requeue it in that case.
go_on_after_failure() {
  local limit
  if ! nodes_answer; then
    limit=$(scontrol show config | sed -n 's/^SlurmdTimeout *= *\([0-9]*\).*/\1/p')
    limit=$((${limit:-300} + 60))
    say "a node does not answer; waiting at most $limit s for Slurm to mark it down and requeue the job."
    for ((; limit > 0; --limit)); do
      if [ -n "$slurm_ends_us" ] || [ "$(job_state)" != RUNNING ]; then break; fi
      sleep 1
    done
  fi
  go_on_later
}

# Requeues the job, unless Slurm already ends it, or three starts in a row made no checkpoint.
go_on_later() {
  local state barren=0 counter=$run_dir/starts_without_progress
  state=$(job_state)
  [ "$state" = RUNNING ] || stop 75 "Slurm itself is ending this job (${state:-gone})."
  if [ "$(newest_checkpoint "$run_dir")" = "$checkpoint_before" ]; then
    barren=$(number_in "$counter")
    barren=$((${barren:-0} + 1))
    [ "$barren" -lt 3 ] || { rm -f "$counter"; stop "${code:-7}" "three starts without a new checkpoint: not starting again."; }
  fi
  replace "$counter" <<<"$barren"
  say "requeueing, to resume from $(basename "$(newest_checkpoint "$run_dir")" .h5)."
  scontrol requeue "$SLURM_JOB_ID" || [ "$(job_state)" != RUNNING ] ||
    say "Slurm did not requeue the job; submit it again with --run-dir $run_dir."
  exit 75
}

# Writes a page about the run for users; a failure does not affect the job.
write_report() {
  [ -x "$CIFAR_MPI_BIN/cifar_mpi_report" ] || return 0
  timeout -k 2 20 "$CIFAR_MPI_BIN/cifar_mpi_report" "$run_dir" </dev/null || say "there is no report: cifar_mpi_report ended with $?."
}

slurm_ends_us=
note_signal() { slurm_ends_us=1; }  # a signal while no ranks run
trap note_signal USR1 TERM
restarts=${SLURM_RESTART_COUNT:-0}
# shellcheck source=env/shared_files.sh
. "$root/env/shared_files.sh"
# shellcheck source=env/site.sh
. "$root/env/site.sh"
[ -x "$CIFAR_MPI_BIN/cifar_mpi_train" ] || [ -n "$CIFAR_MPI_SRUN_OPTIONS" ] ||  # the container may have it
  stop 2 "there is no cifar_mpi_train in $CIFAR_MPI_BIN; build it, or set CIFAR_MPI_BIN in env/site.sh."
find_run_dir "$@"
checkpoint_before=$(newest_checkpoint "$run_dir")
count_ranks
check_layout
warn_of_idle_gpus "$@"
choose_launcher
train "${own_options[@]}" "$@"
[[ " $* " = *' --self-check only '* ]] || write_report
case $code in
  0) rm -f "$run_dir/starts_without_progress"; stop 0 "done." ;;
  75) say "code 75: $sentence"; go_on_later ;;
  1 | 2 | 3 | 4 | 5 | 6 | 8 | 9 | 10) stop "$code" "code $code, not starting again: $sentence" ;;
  *) say "code $code: $sentence"; go_on_after_failure ;;
esac
