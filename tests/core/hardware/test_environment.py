from __future__ import annotations

from harness.core.hardware.environment import DETERMINISM, WITHOUT, determinism, is_deterministic_te, recorded


def test_only_untimed_cells_are_bound_to_kernels_that_repeat() -> None:
    assert determinism({}, timed=False) == DETERMINISM
    assert determinism({}, timed=True) == {}
    assert is_deterministic_te({}, timed=False)
    assert not is_deterministic_te({}, timed=True)


def test_what_the_user_or_the_profile_says_stays() -> None:
    environment = {"NCCL_ALGO": "Tree", WITHOUT: "NVTE_ALLOW_NONDETERMINISTIC_ALGO"}
    assert determinism(environment, timed=False) == {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    assert not is_deterministic_te(environment, timed=False)
    assert is_deterministic_te({"NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0"}, timed=True)


def test_what_chooses_kernels_algorithms_and_networks_is_recorded() -> None:
    environment = {"PATH": "/bin", "NVTE_DEBUG": "1", "NCCL_ALGO": "Ring", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    assert list(recorded(environment)) == ["CUBLAS_WORKSPACE_CONFIG", "NCCL_ALGO", "NVTE_DEBUG"]
