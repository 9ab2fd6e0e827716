#!/bin/bash
# shellcheck disable=SC2016  # the programs below are for a later bash
# The decisions of jobs/run.sh, with stand-ins for Slurm, the launchers and the program; tests/slurm has the real ones.
set -euo pipefail
# shellcheck source=tests/tools/check.sh
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"

# This machine's MPI and Slurm are invisible: PATH has the stand-ins and the tools that the job files use.
mapfile -t tools < <(type -P bash basename cat chmod cp date dd dirname env find grep ln mkdir mkfifo mktemp mv readlink rm sed sleep \
  sort stat tail timeout touch wc)
ln -s "${tools[@]}" "$fake/"
PATH=$fake
stand_in "$fake/squeue" <<<'echo RUNNING'
stand_in "$fake/scontrol" <<<''
stand_in "$fake/lscpu" <<<'echo 0'
stand_in "$fake/srun" <<<'case $* in *--mpi=list*) echo "none pmi2" ;; esac'
mkdir programs
stand_in programs/cifar_mpi_train <<<'echo "0 done" >run/exit'
unset CUDA_VISIBLE_DEVICES
export SLURM_JOB_ID=7 SLURM_JOB_NAME=job SLURM_JOB_NUM_NODES=1 CIFAR_MPI_ROOT=$root CIFAR_MPI_BIN=$here/programs
with_mpirun() { stand_in "$fake/mpirun" <<<'shift 4; exec "$@"'; }
# the job's process number is in the file `job`
job() { bash -c 'echo $$ >job; exec bash "$CIFAR_MPI_ROOT/jobs/cifar10_1node.slurm" --run-dir run'; }

TrainsThroughTheLauncherThatIsThere() {
  with_mpirun
  ends_with 0 job
  says 'done.'
  grep -q '^mpirun .*cifar_mpi_train --run-dir run' "$calls" || fail "called: $(cat "$calls")"
}

EndsWithAReportThatChangesNothing() {
  with_mpirun
  local code end
  for code in 0 4 75 139; do
    stand_in programs/cifar_mpi_report <<<"echo report of \$1; exit $code"
    ends_with 0 job
    says 'report of run'
    says 'done.'
    [ "$code" = 0 ] || says "there is no report: cifar_mpi_report ended with $code"
  done
  grep -q '^cifar_mpi_report run$' "$calls" || fail "called: $(cat "$calls")"
  for end in '75 stopped' '8 diverged'; do  # it is made after any end of the ranks
    stand_in programs/cifar_mpi_train <<<"rm -f run/exit; echo '$end' >run/exit; exit ${end%% *}"
    ends_with "${end%% *}" job
    says 'report of run'
  done
  grep -q '^scontrol requeue 7' "$calls" || fail "it was not requeued"
}

ChecksGpusAndNothingElse() {
  with_mpirun
  stand_in programs/cifar_mpi_report <<<''
  stand_in programs/cifar_mpi_train <<<'echo "rank 1 on node2: divergence"; exit 6'
  ends_with 6 bash "$root/jobs/self_check.slurm" --precision fp32
  says 'rank 1 on node2: divergence'
  says 'code 6, not starting again'
  grep -q '^cifar_mpi_train .*--self-check only --precision fp32' "$calls" || fail "called: $(cat "$calls")"
  ! grep -qE 'requeue|cifar_mpi_report' "$calls" || fail "called: $(cat "$calls")"
}

SaysOutsideSlurmHowToStartTheSame() {
  local file
  unset SLURM_JOB_ID
  for file in "$root"/jobs/*.slurm; do
    file=$(basename "$file" .slurm)
    ends_with 2 bash "$root/jobs/$file.slurm" --help
    says "$file: this file is for Slurm: sbatch jobs/$file.slurm; without Slurm: "
    [ "$(wc -l <said)" = 1 ] || fail 'it says more than one sentence'
    case $file in self_check) says '--self-check only' ;; study) says 'tools/study' ;; *) says 'mpirun' ;; esac
  done
  ends_with 2 bash "$root/jobs/run.sh"
  says 'run.sh: the job files source this file; submit one of them'
  [ ! -s "$calls" ] || fail "called: $(cat "$calls")"
}

StopsWhereNoLauncherIsThere() {
  ends_with 10 job
  says 'there is no mpirun here'
  ! grep -q requeue "$calls" || fail "it was requeued"
}

StopsWhereTheChosenLauncherIsNotThere() {
  CIFAR_MPI_LAUNCHER=mpirun ends_with 10 job
  says 'CIFAR_MPI_LAUNCHER is mpirun'
  with_mpirun
  CIFAR_MPI_LAUNCHER=srun ends_with 10 job
  says 'CIFAR_MPI_LAUNCHER is srun'
  ! grep -q requeue "$calls" || fail "it was requeued"
  CIFAR_MPI_LAUNCHER=ssh ends_with 2 job
  says "not 'ssh'"
}

with_srun() { stand_in "$fake/srun" <<<'case $* in *--mpi=list*) echo "none pmix" ;; *cifar_mpi_train*) while [[ $1 = -* ]]; do shift; done; exec "$@" ;; esac'; }
called() { grep -qE -- "$1" "$calls" || fail "expected a call like $1: $(cat "$calls")"; }
called_not() { ! grep -qE -- "$1" "$calls" || fail "expected no call like $1: $(cat "$calls")"; }

FindsTheCheckoutByTheJobFile() {
  with_mpirun
  ln -s "$root" 'a checkout'
  unset CIFAR_MPI_ROOT
  mkdir spool
  cp "$root/jobs/cifar10_1node.slurm" spool/slurm_script
  export SLURM_SUBMIT_DIR=$here
  stand_in "$fake/scontrol" <<<"echo '   Command=$here/a checkout/jobs/cifar10_1node.slurm --run-dir run/jobs/x.slurm'"
  ends_with 0 bash spool/slurm_script --run-dir run
  says 'done.'
  stand_in "$fake/scontrol" <<<"echo '   Command=$here/copy.slurm'"
  ends_with 2 bash spool/slurm_script --run-dir run
  says "no jobs/run.sh in '', '', '$here'; set CIFAR_MPI_ROOT"
  SLURM_SUBMIT_DIR=$root ends_with 0 bash spool/slurm_script --run-dir run
  CIFAR_MPI_ROOT=$root ends_with 0 bash spool/slurm_script --run-dir run
  local file
  for file in "$root"/jobs/*.slurm; do
    cp "$file" spool/slurm_script
    ends_with 2 bash -c 'bash spool/slurm_script >printed'
    [ ! -s printed ] || fail "${file##*/} prints its error on the standard output"
  done
}

GivesEachRankOneGpuWhateverAskedForThem() {
  local name
  export SLURM_GPUS_ON_NODE=4 SLURM_GPUS=a100:4
  with_mpirun
  stand_in programs/cifar_mpi_train <<<'echo "${!SLURM_*}" >>"$calls"; echo "0 done" >run/exit'
  for name in GPUS_PER_TASK TRES_PER_TASK NTASKS_PER_GPU GPU_BIND TRES_BIND; do export "SLURM_$name=1"; done
  ends_with 0 job
  says '4 ranks and 4 GPUs on each'
  says '--map-by ppr:4:node'
  called 'SLURM_GPUS_PER_NODE'
  called_not 'SLURM_(GPUS|TRES)_PER_TASK|SLURM_(GPU|TRES)_BIND|NTASKS_PER_GPU'
  with_srun
  CIFAR_MPI_LAUNCHER=srun ends_with 0 job
  called '^srun --mpi=pmix .*--gpu-bind=none .*cifar_mpi_train'
}

RefusesNodesWithDifferentNumbersOfGpus() {
  with_mpirun
  SLURM_GPUS_ON_NODE=2 SLURM_JOB_NUM_NODES=2 SLURM_GPUS=3 ends_with 2 job
  says '--gpus=3 gives the 2 nodes different numbers of GPUs; ask for --gpus-per-node'
  called_not '^cifar_mpi_train'
}

CountsGpusThatSlurmDoesNot() {
  local find
  find=$(readlink "$fake/find")
  with_mpirun
  rm "$fake/find"
  fake_program find <<<"[ \"\$1\" != /dev ] || { printf '/dev/nvidia%s\n' 0 1 2; exit; }; exec $find \"\$@\""
  stand_in programs/cifar_mpi_train <<<'echo "${!SLURM_*}" >>"$calls"; echo "0 done" >run/exit'
  ends_with 0 job
  says '3 ranks and 3 GPUs on each'
  called_not 'SLURM_GPUS_PER_NODE'  # srun rejects GPUs that Slurm does not count
  CUDA_VISIBLE_DEVICES=1,2 ends_with 0 job
  says '2 ranks and 2 GPUs on each'
  CUDA_VISIBLE_DEVICES='' ends_with 0 job
  says '1 ranks and 0 GPUs on each'
  stand_in "$fake/scontrol" <<<'echo "   Gres=gpu:3"'
  ends_with 0 job
  says '1 ranks and 0 GPUs on each'
}

WarnsOfGpusThatNoRankTakes() {
  with_mpirun
  export SLURM_GPUS_ON_NODE=4
  SLURM_NTASKS_PER_NODE=3 ends_with 0 job
  says 'warning: 3 ranks leave 1 of the 4 GPUs of a node idle; leave out --ntasks-per-node.'
  ends_with 0 job
  says_not warning
  SLURM_NTASKS_PER_NODE=1 ends_with 0 bash "$root/jobs/cifar10_1node.slurm" --run-dir run --device cpu
  says_not warning
}

TakesSrunForNoMpirun() {
  with_mpirun
  with_srun
  echo "MPIEXEC_EXECUTABLE:FILEPATH=$fake/srun" >programs/CMakeCache.txt
  ends_with 0 job
  called '^srun --mpi=pmix .*cifar_mpi_train'
  called_not '^mpirun|^srun --map-by'
  CIFAR_MPI_LAUNCHER=mpirun ends_with 10 job
  says 'there is no mpirun here'
}

StopsWhereTheLauncherEndsBeforeTheRanks() {
  local code
  for code in 1 127 255; do
    stand_in "$fake/mpirun" <<<"echo 'unknown option --map-by'; exit $code"
    ends_with 10 job
    says "mpirun ended with $code before any rank took the run directory"
    called_not requeue
  done
  # the other launcher is tried
  with_srun
  ends_with 0 job
  called '^srun .*cifar_mpi_train'
  # the launcher is not blamed for an end that a lost node may have caused
  stand_in "$fake/srun" <<<'exit 1'
  stand_in "$fake/squeue" <<<'echo REQUEUED'
  ends_with 75 job
  says 'code 7'
  says 'a node does not answer'
}

GoesOnWhereRanksEndWithoutAWord() {
  local how
  with_mpirun
  for how in 'touch run/lock; exit 1' 'exit 137' 'exit 0'; do
    rm -rf run
    : >"$calls"
    stand_in programs/cifar_mpi_train <<<"$how"
    ends_with 75 job
    says 'code 7'
    called requeue
  done
  ends_with 0 bash "$root/jobs/self_check.slurm" --run-dir run  # which leaves none on success
}

# Lets an hour pass in a few seconds. An mpirun is watched every 10 s; `looked N`, in bash alone, waits for the Nth look.
hurry() {
  local sleep
  sleep=$(readlink -f "$fake/sleep")
  rm "$fake/sleep"
  stand_in "$fake/sleep" <<<"exec '$sleep' 0.01"
  cat >looked <<'END'
exec 3<> <(:)
looked() {
  local line n=0
  while [ "$n" -lt "$1" ]; do
    n=0
    read -rt 0.01 -u 3 || true  # sleeps
    while read -r line; do [ "$line" != 'sleep 10' ] || n=$((n + 1)); done <"$calls"
  done
}
END
}

EndsAnMpirunThatLostItsDaemons() {
  hurry
  local how
  # it obeys signals, or does not, or has a child that it does not wait for
  for how in 'exec tail -f /dev/null' 'trap "" TERM; looked 1000' 'sleep 0 & exec tail -f /dev/null'; do
    rm -rf run
    : >"$calls"
    stand_in "$fake/mpirun" <<<". ./looked; $how"
    ends_with 75 job
    says 'mpirun has had no rank and no daemon for 90 s; ending it.'
    says 'code 7'
    called requeue
  done
  OMPI_MCA_odls_base_sigkill_timeout=60 ends_with 75 job  # after a failure such an mpirun sleeps for 120 s
  says 'mpirun has had no rank and no daemon for 180 s; ending it.'
}

LeavesAnMpirunThatIsSlow() {
  hurry
  local how
  # without a child for 70 s, at the start and at the end; with a child for 300 s
  for how in 'looked 7; looked 9 & wait; "$@"; looked 15' 'looked 30 & wait; "$@"'; do
    : >"$calls"
    stand_in "$fake/mpirun" <<<". ./looked; shift 4; $how"
    ends_with 0 job
    says 'done.'
    says_not 'ending it'
  done
}

StartsRanksInAContainer() {
  with_mpirun
  with_srun
  export CIFAR_MPI_SRUN_OPTIONS='--container-image=/images/a.sqsh --container-mounts=/data'
  ends_with 0 job
  called '^srun --mpi=pmix .* --container-image=/images/a.sqsh --container-mounts=/data .*cifar_mpi_train'
  called_not '^mpirun'
  mv programs inside
  stand_in "$fake/srun" <<<'case $* in *--mpi=list*) echo pmix ;; *container*) echo "0 done" >run/exit ;; esac'
  ends_with 0 job
  CIFAR_MPI_LAUNCHER=mpirun ends_with 2 job
  says 'CIFAR_MPI_SRUN_OPTIONS needs srun'
}

BindsRanksAsTold() {
  with_mpirun
  ends_with 0 job
  called '^mpirun .*--bind-to none '
  CIFAR_MPI_BIND=numa ends_with 0 job
  called '^mpirun .*--bind-to numa '
  with_srun
  CIFAR_MPI_LAUNCHER=srun CIFAR_MPI_BIND=numa ends_with 0 job
  called '^srun .*--cpu-bind=ldoms '
  CIFAR_MPI_LAUNCHER=srun CIFAR_MPI_BIND=core ends_with 0 job
  called '^srun .*--cpu-bind=cores '
  CIFAR_MPI_BIND=disk ends_with 2 job
  says "not 'disk'"
}

LeavesWhenItIsAskedToBeforeTheRanksStart() {
  with_mpirun
  stand_in "$fake/lscpu" <<<'kill -USR1 "$(cat job)"; echo 0'
  ends_with 75 job
  says 'requeueing, to resume from'
  grep -q '^scontrol requeue 7' "$calls" || fail "called: $(cat "$calls")"
  ! grep -q '^cifar_mpi_train' "$calls" || fail "the ranks were started"
}

LeavesWhenItIsAskedToWhileTheRanksRun() {
  with_mpirun
  stand_in programs/cifar_mpi_train <<<'trap "echo 75 stopped >run/exit; exit 75" USR1; kill -USR1 "$(cat job)"; for i in {1..200}; do sleep 0.05; done'
  ends_with 75 job
  says 'code 75: stopped'
}

# A user who can write the run directory must not thereby run or write anything as the job's owner.
stopped_run() { stand_in programs/cifar_mpi_train <<<'rm -f run/exit; echo "75 stopped" >run/exit; exit 75'; mkdir run; }

ExecutesNothingThatStandsInTheRunDirectory() {
  with_mpirun
  stopped_run
  local content
  for content in 'a[$(touch executed)0]' 'x[`touch executed`]+1' '1+1' '99999999999999999999' '-1' ''; do
    printf '%s\n' "$content" >run/starts_without_progress
    ends_with 75 job
    says 'requeueing, to resume from'
    [ "$(cat run/starts_without_progress)" = 1 ] || fail "'$content' counts as $(cat run/starts_without_progress)"
    [ ! -e executed ] || fail "'$content' was executed"
  done
  echo 2 >run/starts_without_progress
  ends_with 75 job
  says 'three starts without a new checkpoint'
  stand_in programs/cifar_mpi_train <<<'rm -f run/exit; echo "a[\$(touch executed)] x" >run/exit; exit 75'
  ends_with 75 job
  [ ! -e executed ] || fail "the record of the end was executed"
}

WritesThroughNoLinkInTheRunDirectory() {
  with_mpirun
  stopped_run
  local name
  echo mine >precious
  for name in layout starts_without_progress; do ln -s ../precious "run/$name"; done
  ln -s ../made run/starts_without_progress.new
  SLURM_RESTART_COUNT=1 ends_with 75 job
  says 'requeueing, to resume from'
  says_not 'before the restart'
  [ "$(cat precious)" = mine ] || fail "a link was written through: $(cat precious)"
  for name in layout starts_without_progress; do
    if [ ! -f "run/$name" ] || [ -L "run/$name" ]; then fail "$name is no file of its own"; fi
  done
}

TakesNoLinkForTheDirectoryThatItNamesItself() {
  with_mpirun
  stand_in programs/cifar_mpi_train <<<'echo "0 done" >runs/job-7/exit'
  mkdir runs other
  ln -s ../other runs/job-7
  ends_with 2 bash "$CIFAR_MPI_ROOT/jobs/cifar10_1node.slurm"
  says 'runs/job-7 is a symbolic link that this job did not make'
  [ -z "$(find other -mindepth 1)" ] || fail "the other run has $(find other)"
  rm runs/job-7
  ends_with 0 bash "$CIFAR_MPI_ROOT/jobs/cifar10_1node.slurm"
  says_not 'unbound variable'
}

WritesThroughNoLinkThatAppearsBeforeItWrites() {
  with_mpirun
  stopped_run
  local target
  echo mine >precious
  for target in precious made; do
    rm "$fake/mktemp"
    stand_in "$fake/mktemp" <<<"ln -sfn '$here/$target' run/planted; echo run/planted"
    ends_with 75 job
    says 'cannot overwrite existing file'
    [ "$(cat precious)" = mine ] || fail "the link was written through: $(cat precious)"
    [ ! -e made ] || fail "the link was written through: $(cat made)"
    [ ! -e run/layout ] || fail "the link became the file"
  done
}

WaitsForNoPipeInTheRunDirectory() {
  with_mpirun
  stand_in programs/cifar_mpi_train <<<'exit 75'
  mkdir run
  mkfifo run/layout run/starts_without_progress run/exit
  SLURM_RESTART_COUNT=1 ends_with 75 timeout 90 bash "$root/jobs/cifar10_1node.slurm" --run-dir run
}

CountsOnlyFilesNamedAsCheckpoints() {
  with_mpirun
  stopped_run
  mkdir run/checkpoints
  touch run/checkpoints/step_000000010.h5 run/checkpoints/step_good.h5 run/checkpoints/step_9.h5.h5
  ln -s /dev/null run/checkpoints/step_000000020.h5
  ends_with 75 job
  says 'to resume from step_000000010.'
  mv run/checkpoints elsewhere
  ln -s ../elsewhere run/checkpoints
  ends_with 75 job
  says 'to resume from .'
}

ShowsNoControlCharactersOfTheRunDirectory() {
  with_mpirun
  mkdir run
  stand_in programs/cifar_mpi_train <<<'printf "3 re\\033[31md, C1 \\302\\233 and gr\\303\\266\\303\\237er\\n" >run/exit; exit 3'
  ends_with 3 job
  says 're?[31md, C1 ? and größer'
}

"$1"
