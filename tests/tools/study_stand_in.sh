# shellcheck shell=bash disable=SC2016,SC2034,SC2154
# Sourced by the tests of tools/study, after check.sh: stand-ins for mpirun and the programs.
need_python
study=$root/tools/study

# Programs that compute 100 images/s per node with a spread of 1 %, on links of 10 Gbit/s. The folder `faults` changes them:
# NODE.slow (a factor), NODE.slow_once, NODE.share (of the processor, from LOW,HIGH), NODE.bits, NODE.link (Gbit/s), A+B.link, NODE.dead, compute (communication costs nothing), wrong
# (elements of a sum).
programs() {
  mkdir -p "$fake/build" faults
  stand_in "$fake/mpirun" <<'EOS'
hosts=local
while [[ $1 == -* ]]; do
  case $1 in --host) hosts=$2; shift 2 ;; -np | --bind-to) ranks=$2; shift 2 ;; *) shift ;; esac
done
export HOSTS=${hosts//:[0-9]/} RANKS=$ranks
for node in ${HOSTS//,/ }; do [ ! -e "faults/$node.dead" ] || { echo "no way to $node"; exit 205; }; done
exec "$@"
EOS
  # it starts hundreds of times: without its site and the module json
  { echo "#!$(readlink "$fake/python3") -SE"; cat; } >"$fake/build/cifar_mpi_bench" <<'EOS'
import os, random, sys
args = dict(zip(sys.argv[2::2], sys.argv[3::2]))
hosts = os.environ["HOSTS"].split(",")
def fault(name, usual):
    return open(f"faults/{name}").read().strip() if os.path.exists(f"faults/{name}") else usual
def once(name):
    found = float(fault(name, 1))
    if os.path.exists(f"faults/{name}"):
        os.unlink(f"faults/{name}")
    return found
noise = lambda: random.uniform(0.995, 1.005)
lines = []
if sys.argv[1] == "step":
    batch = int(args["--batch-size"])
    cost = 0.85 if len(hosts) > 1 else 1.0
    speed = 100 * len(hosts) * cost * noise() * min(float(fault(f"{h}.slow", 1)) for h in hosts) * once(f"{hosts[0]}.slow_once")
    share = random.uniform(*map(float, fault(f"{hosts[0]}.share", "1,1").split(",")))
    speed *= share
    ms = 1e3 * batch * int(os.environ["RANKS"]) / speed
    lines = [{"program": "0 (test)", "backend": "cpu", "kernels": "k", "bits": fault(f"{hosts[0]}.bits", "00ab"), "ranks": int(os.environ["RANKS"]),
              "batch_size": batch, "images_per_s": [speed] * 3, "processor_share": [share] * 3, "peak_gflops": [50 * noise()] * 3, "copy_gb_s": [9 * noise() * share] * 3,
              "step_ms": [ms] * 3, "slice_ms": [ms * noise() for _ in range(30)], "slice_share": [share] * 30, "alone_ms": [ms if os.path.exists("faults/compute") else ms * cost] * 3}]
    if os.path.exists("faults/old"):
        del lines[0]["slice_ms"]
elif sys.argv[1] == "ways":
    for way in fault("reported", args["--ways"]).split(","):
        print(f"{way:<20} 3+1 384 no {float(args.get('--compute-ms', 60)) + 20:.2f} 5000 {4000 * noise():.0f} 2.8 8.5 0.0% - server, rank 3")
    sys.exit()
elif sys.argv[1] == "allreduce":
    lines = [{"algorithm": a, "bytes": 4096 * k, "median_us": 5.0 * k, "p99_us": 9.0 * k, "busbw_gb_s": 1.5, "mpi_allreduce_us": 10.0 * k,
              "wrong": int(fault("wrong", 0))} for k in (1, 2) for a in ("ring", "mpi")]
else:
    rate = min(float(fault(f"{name}.link", 10)) for name in hosts + ["+".join(hosts)])
    lines = [{"format": "cifar_mpi links", "version": 1, "nodes": len(hosts), "message_bytes": [8, 16], "message_us": [20.0, 21.0],
              "bandwidth_gbit_s": rate * noise(), "memory_gb_s": 8.0}]
open(args["--json"], "w").write("".join(str(line).replace("'", '"') + "\n" for line in lines))
EOS
  stand_in "$fake/build/cifar_mpi_train" <<'EOS'
for word; do
  [ "${before-}" != --run-dir ] || dir=$word
  [ "${before-}" != --seed ] || seed=$word
  before=$word
done
mkdir -p "$dir"
[ ! -e counter/energy_uj ] || echo 2000000 >counter/energy_uj
{
  echo '{"event":"start","step":0,"ranks":2,"global_batch":10}'
  echo '{"step":100,"epoch":1,"seconds":10}'
  echo "{\"step\":100,\"epoch\":1,\"test_accuracy\":0.7}"
  echo '{"step":200,"epoch":2,"seconds":20}'
  echo "{\"step\":200,\"epoch\":2,\"test_accuracy\":0.8$seed}"
} >"$dir/metrics.jsonl"
EOS
  chmod +x "$fake/build/cifar_mpi_bench"
}
hosts=node1,node2,node3,node4
run() { ends_with "$1" "$study" --build "$fake/build" --seconds 0.01 "${@:2}"; }
# json EXPRESSION: of study.json, as `study`
json() { python3 -c "import json; study = json.load(open('${out-study}/study.json')); print(($1))"; }
is() { [ "$(json "$1")" = "$2" ] || fail "$1 is $(json "$1"), not $2"; }
launches() { grep -c '^mpirun' "$calls" || true; }
