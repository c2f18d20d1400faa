#!/usr/bin/env bash
# Everything that needs a GPU, in one command and at most nine minutes: the GPU tests, a one-rank matrix over attention,
# packing and dtype, the harness's own overhead, and the throughput suite. Uses no network: docs/throughput.md.
#
#   benchmarks/gpu_check.sh [--cpu] [--minutes N] [--wheels FOLDER] [--tests FOLDER] [--matrix FILE] [--throughput FILE]
#
# Writes summary.md, summary.json, report.json, report.html, throughput.json, throughput.html, tests.xml and log.txt into
# $OUT (reports/gpu_check). Each part has a time limit; one that exceeds it is ended, and the others continue.
# Exit codes: 0 everything passed; 1 a test, a check or a figure failed; 2 usage; 3 something could not be decided.
#
# HARNESS_PYTHON  a Python with torch, when python3 has none
# TE_WHEELS       folder with wheels of Transformer Engine, when the machine has none
set -u
cd "$(dirname "$0")/.." || exit 3

tests=tests/gpu matrix=matrices/gpu.yaml throughput=
wheels=.gpu-wheels minutes=9 on_cpu=
usage() {
  sed -n '5p' "$0" >&2
  exit 2
}
while (($#)); do
  case $1 in
    --cpu) on_cpu=1 ;;
    --minutes | --wheels | --tests | --matrix | --throughput)
      (($# > 1)) || usage
      printf -v "${1#--}" %s "$2"
      shift
      ;;
    *) usage ;;
  esac
  shift
done
[[ $minutes =~ ^[1-9][0-9]*$ ]] || usage

out=${OUT:-reports/gpu_check}
mkdir -p "$out" build
out=$(cd "$out" && pwd)
rm -f "$out"/{summary.md,summary.json,report.json,report.html,throughput.json,throughput.html,tests.xml,log.txt}
work=$(mktemp -d build/gpu-check.XXXXXX)
trap 'rm -rf "$work"' EXIT
log=$out/log.txt
deadline=$((SECONDS + minutes * 60 - 15)) # the summary comes last
reserve=0                                   # seconds that the next part must leave
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1
unset PYTHONDONTWRITEBYTECODE # else every part compiles Megatron again, for 8 s
exec 3>&1

say() { printf 'gpu_check: %s\n' "$*" | tee -a "$log" >&3; }

summary() { "${python:-python3}" benchmarks/gpu_summary.py "$out" "$work"; }

# NAME EXIT-CODE SECONDS LIMIT WHY: record a part and write the summary, so that a killed check has one too.
note() {
  printf '%s\t%s\t%s\t%s\t%s\n' "$@" >>"$work/parts.tsv"
  summary >/dev/null 2>&1
}

# NAME LIMIT COMMAND...: run a part within its limit (in a check of nine minutes) and the time left; its exit code.
part() {
  local name=$1 limit=$(($2 * minutes / 9)) begin=$SECONDS code=0 left=$((deadline - reserve - SECONDS)) why=
  shift 2
  ((limit > left)) && limit=$left
  if ((limit < 5)); then
    say "$name: no time left"
    note "$name" skipped 0 0 "no time left"
    return 3
  fi
  say "$name: at most $limit s"
  timeout --signal=INT --kill-after=10 "$limit" "$@" >"$work/$name.txt" 2>&1 3>&- || code=$?
  cat "$work/$name.txt" >>"$log"
  if ((code == 124 || code == 137)); then why="exceeded its limit of $limit s"; fi
  say "$name: exit code $code after $((SECONDS - begin)) s"
  note "$name" "$code" "$((SECONDS - begin))" "$limit" "$why"
  return "$code"
}

skip() {
  say "$1: skipped: $2"
  note "$1" skipped 0 0 "$2"
}

# NAME LIMIT MATRIX REPORT: run a matrix, judge what has finished if it ran out of time, and keep its report as REPORT.*
cells() {
  local name=$1 limit=$2 file=$3 report=$4 runs=$work/$1 run
  if [[ ! -f $file ]]; then
    skip "$name" "there is no $file"
    return
  fi
  if [[ -n $on_cpu ]]; then # rules then reject cells that need a GPU, and the others are made small
    sed 's/device: cuda/device: cpu/; s/seq_length: [0-9]*/seq_length: 128/' "$file" >"$work/$name.yaml"
    file=$work/$name.yaml
  fi
  reserve=30 # to judge the finished cells
  part "$name" "$limit" "$python" -W ignore -m harness run "$file" --run-dir "$runs"
  reserve=0
  for run in "$runs"/*/plan.json; do
    [[ -f $run ]] || return
    run=${run%/plan.json}
    [[ -f $run/report.json ]] || part "$name-judged" 60 "$python" -W ignore -m harness report "$run"
    [[ -f $run/report.json ]] || continue
    cp "$run/report.json" "$out/$report.json"
    cp "$run/report.html" "$out/$report.html"
    "$python" -W ignore -m harness logs "$run" 2>/dev/null | tail -n 60 >>"$log"
  done
}

finish() {
  summary | tee -a "$log" >&3
  exit "${PIPESTATUS[0]}"
}

more=()
[[ -n ${TE_WHEELS:-} ]] && more=(--extra "$TE_WHEELS")
limit_s=$((120 * minutes / 9))
starter=${HARNESS_PYTHON:-python3}
if python=$(timeout "$limit_s" "$starter" scripts/gpu_wheels.py ready --wheels "$wheels" --into build/gpu-venv \
  "${more[@]}" 2>"$work/ready.txt"); then
  note environment 0 "$SECONDS" "$limit_s" ""
  cat "$work/ready.txt" >>"$log"
else
  code=$? python=
  tee -a "$log" <"$work/ready.txt" >&3
  why=$(tail -n 1 "$work/ready.txt")
  ((code == 124)) && why="exceeded its limit of $limit_s s; last message: $why"
  note environment "$code" "$SECONDS" "$limit_s" "$why"
  finish
fi
say "python: $python"

part facts 60 "$python" -W ignore benchmarks/gpu_facts.py "$work/facts.json"
if grep -q '"cuda": true' "$work/facts.json" 2>/dev/null; then
  # Other pytest plugins of the machine may warn, and warnings are errors here. pyproject.toml has options of pytest_timeout.
  export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
  part tests 110 "$python" -m pytest -p pytest_timeout -p no:cacheprovider -q -m gpu "$tests" --junit-xml "$out/tests.xml"
elif [[ -z $on_cpu ]]; then
  for name in tests matrix overhead throughput; do skip "$name" "no CUDA device"; done
  finish
else
  skip tests "no CUDA device"
fi
cells matrix 120 "$matrix" report
if [[ -n $on_cpu ]]; then
  skip overhead "no CUDA device"
else
  part overhead 45 "$python" -W ignore benchmarks/bench_overhead.py --rounds 21
fi
if [[ -n $on_cpu && -z $throughput ]]; then
  skip throughput "no CUDA device, and the suite is far too large without one; --throughput FILE runs another"
else
  cells throughput 330 "${throughput:-matrices/throughput_gpu.yaml}" throughput
fi
finish
