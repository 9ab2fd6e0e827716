#!/bin/bash
set -euo pipefail
# shellcheck source=tests/tools/check.sh
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"

need_python
compare=$root/tools/compare_pytorch

# A program of 300 images/s, and a Python whose variants make 200, but without oneDNN 50.
programs() {
  stand_in "$fake/bench" <<'EOS'
echo 'images/s                300.000     300.000     300.000'
echo 'share of the roofline: 62.5 %   (62.5 to 62.5; limit 265.0 ms: each task'\''s operations or bytes at these rates)'
EOS
  stand_in "$fake/with_torch" <<'EOS'
variant=; while [ $# -gt 0 ]; do [ "$1" != --serve ] || variant=$2; shift; done
case $variant in *no-mkldnn) rate=50 ;; channels_last) rate=200 ;; *) rate=150 ;; esac
echo 'PyTorch 0.0'
while read -r _; do echo "$rate"; done
EOS
}
run() { ends_with "$1" "$compare" --bench "$fake/bench" --python "$fake/with_torch" --rounds 2 "${@:2}"; }

HoldsTheProgramAgainstTheBestVariantOfEachRound() {
  programs
  run 0
  says 'PyTorch 0.0; resnet20, fp32, batch 128, 1 x 1 thread(s); images/s'
  says 'ratio to the best of each round    1.50 (1.50 to 1.50)'
  says 'cifar_mpi                          300 (300 to 300)   62.5 (62.5 to 62.5) % of the roofline'
  grep -q '^bench step .*--model resnet20 .*--threads 1 --precision fp32' "$calls" || fail "the program was called so: $(cat "$calls")"
  run 0 --model fast94
  says 'PyTorch 0.0; fast94, fp32, batch 128'
}

ComparesOnAGpu() {
  programs
  run 0 --device cuda --model tutorial --precision bf16
  says 'PyTorch 0.0; tutorial, bf16, batch 128, one GPU; images/s'
  says 'channels_last,lrn-conv,compile,pad8 150'
  grep -q '^bench step --device cuda .*--precision bf16' "$calls" || fail "the program was called so: $(cat "$calls")"
}

LeavesSlowVariantsOutAfterTheFirstRound() {
  programs
  run 0
  says 'nchw,no-mkldnn is left out of the other rounds'
  [ "$(grep -c 'no-mkldnn 50' said)" = 1 ] || fail 'expected the slow variants in the first round alone'
}

LeavesOutAVariantWhoseLossIsNotFinite() {
  programs
  stand_in "$fake/with_torch" <<'EOS'
variant=; while [ $# -gt 0 ]; do [ "$1" != --serve ] || variant=$2; shift; done
case $variant in channels_last) rate=100 ;; *) rate=nan ;; esac
echo 'PyTorch 0.0'
while read -r _; do echo "$rate"; done
EOS
  run 0 --model fast94
  says 'nchw is left out: its loss is not finite'
  says 'ratio to the best of each round    3.00 (3.00 to 3.00)'
  run 1 --model fast94 --variants nchw
  says 'no variant of PyTorch has a finite loss'
}

TellsWhatFailed() {
  programs
  stand_in "$fake/bench" <<<'echo no such precision here; exit 6'
  run 1 --precision bf16
  says 'no such precision here'
  stand_in "$fake/with_torch" <<<'echo there is no PyTorch here >&2; exit 1'
  run 1
  says 'there is no PyTorch here'
  says 'variant nchw ended'
}

RefusesNonsense() {
  programs
  run 2 --model vgg
  run 2 --threads 0
  run 2 --ranks 3
  says '--batch-size 128 must be a multiple of --ranks 3'
  run 2 --device cuda --ranks 2
  says 'there is one rank, on one GPU'
  run 2 --device cuda --variants no-mkldnn
  run 2 --variants nchw,fast
  says "'fast' is not one of"
  run 2 --data data.h5
  says '--data needs --values'
  run 2 --values --model tutorial
  says '--values: needs --model fast94 or resnet20, on a CPU in fp32'
  run 2 --values --model fast94 --precision bf16
  run 2 --values --model fast94 --ranks 3
  says '--ranks must divide 16, not be 3'
  ends_with 2 "$compare" --values --model fast94 --bench "$here/nothing"
  says 'cifar_mpi_train is not a program'
  ends_with 2 "$compare" --bench "$here/nothing"
  says 'cmake --build build --target cifar_mpi_bench'
}

"$1"
