#!/usr/bin/env bash
# One night: finishes an interrupted run, pulls the code under test, runs a matrix, draws the history, removes old runs.
#
#   nightly.sh [nightly | weekly | NAME]   runs matrices/NAME.yaml; default: nightly
#   nightly.sh --resume [NAME]             only follows and judges an interrupted run, for @reboot
#
# Settings, as environment variables, with their defaults:
#   HARNESS_DIR   the checkout of the harness, set up with `make setup` (the one that contains this file)
#   CLUSTER       a cluster profile; empty: this machine
#   CODE_DIR      a Megatron-LM checkout whose branch main is pulled and tested too; empty: releases only
#   RUN_DIR       where run directories, the history and the log are (~/packing-nightly); on a cluster all nodes must see it
#   NOTIFY        a command or a webhook that receives the verdict (docs/ci.md); empty: none
#   KEEP_DAYS     run directories older than this are removed (30); the history keeps their verdicts for two years
#
# Exit code: that of `harness run`; 75 if another night still holds the lock.
set -euo pipefail

resume_only=false
if [[ ${1:-} == --resume ]]; then
    resume_only=true
    shift
fi
name=${1:-nightly}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
harness_dir=${HARNESS_DIR:-$here}
run_dir=${RUN_DIR:-$HOME/packing-nightly}
code_dir=${CODE_DIR:-}
where=()
[[ -n ${CLUSTER:-} ]] && where=(--cluster "$CLUSTER")
notify=()
[[ -n ${NOTIFY:-} ]] && notify=(--notify "$NOTIFY")
export PATH="$harness_dir/.venv/bin:$PATH"
# Under scrontab this script is itself a job: its Slurm variables must not change the cells' jobs.
for variable in "${!SLURM_@}"; do
    [[ $variable == SLURM_CONF ]] || unset "$variable"
done

mkdir -p "$run_dir"
cd "$harness_dir"
exec 9>"$run_dir/.lock"
if ! flock --nonblock 9; then # the kernel releases the lock, however the script ends
    echo "nightly.sh: another night holds $run_dir/.lock" >&2
    exit 75
fi

say() { echo "$(date -u +%FT%TZ) $*"; }

# The newest run of the matrix, if it was started and not judged.
unfinished() {
    local runs=("$run_dir/$name"-2*/plan.json)
    local last=${runs[-1]%/plan.json}
    [[ -e $last/plan.json && -e $last/cluster.json && ! -e $last/report.json ]] && echo "$last"
}

if left=$(unfinished); then
    say "$left was interrupted: follow and judge it"
    status=0
    harness resume "$left" "${notify[@]}" --run-dir "$run_dir" || status=$?
    say "resumed with exit code $status"
fi
if $resume_only; then
    exit "${status:-0}"
fi

matrix=$harness_dir/matrices/$name.yaml
if [[ -n $code_dir ]]; then
    git -C "$code_dir" pull --ff-only --quiet
    say "code under test: $(git -C "$code_dir" log -1 --format='%h of %cs')"
    # Uncomments the lines with #: and points them to the checkout.
    sed -e 's/#: //' -e "s|\.\./\.\./Megatron-LM|$code_dir|" "$matrix" >"$run_dir/$name.yaml"
    matrix=$run_dir/$name.yaml
fi

harness verify "$matrix"
status=0
harness run "$matrix" "${where[@]}" "${notify[@]}" --run-dir "$run_dir" || status=$?
if [[ $status == 3 && -n ${CLUSTER:-} ]]; then
    say "some cells could not be decided: once more"
    status=0
    harness resume latest --errors "${notify[@]}" --run-dir "$run_dir" || status=$?
fi
say "$name ended with exit code $status"

harness index "$run_dir"
harness history prune --older-than 730d --keep-last 100 --run-dir "$run_dir"

find "$run_dir" -mindepth 1 -maxdepth 1 -type d -name "$name-2*" -mtime "+${KEEP_DAYS:-30}" -exec rm -rf {} +
exit "$status"
