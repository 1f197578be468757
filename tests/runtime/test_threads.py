"""The thread pool and the workspaces, without the code generator: tasks are written in Python."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import minitvm
from minitvm import runtime
from minitvm.runtime import threads, threads_text, workspace
from minitvm.runtime.device_api import pool_text
from tests.forks import assert_in_child
from tests.memory.mapped import mapped
from tests.processes import output_of

_TASK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p
)
_PARALLEL_FOR = ctypes.CFUNCTYPE(
    ctypes.c_int,
    _TASK,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_void_p,
)
_BARRIER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_MANY = 2**40
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


@pytest.fixture(autouse=True)
def number_of_threads() -> Iterator[None]:
    before = runtime.num_threads()
    runtime.set_num_threads(3)
    yield
    runtime.set_num_threads(before)


def region(
    function: Callable[..., int], limit: int = _MANY, worth: int = _MANY, each: int = 1
) -> tuple[int, list[int]]:
    """Calls ``function(task, tasks, region, record)`` as the tasks of a region, at most `limit`, as
    many as the work is `worth`, and `each` for a thread; its status, and the failure record."""

    def task(closure: int, number: int, tasks: int, region: int, failure: int) -> int:
        record = (ctypes.c_int64 * threads_text.MAX_FAILURE_VALUES).from_address(failure)
        return function(number, tasks, region, record)

    values = (ctypes.c_int64 * threads_text.MAX_FAILURE_VALUES)()
    run = _PARALLEL_FOR(threads.parallel_for_address())
    return run(_TASK(task), None, limit, worth, each, ctypes.addressof(values)), list(values)


def meet(limit: int = _MANY) -> int:
    """How many tasks a region has; each waits for all others, so that all run at once."""
    met: list[threading.Barrier] = []
    seen: list[int] = []
    lock = threading.Lock()

    def task(number: int, tasks: int, *_: Any) -> int:
        with lock:
            if not met:
                met.append(threading.Barrier(tasks))
            seen.append(number)
        met[0].wait(30)
        return 0

    assert region(task, limit)[0] == 0
    assert sorted(seen) == list(range(len(seen)))
    return len(seen)


# -- Regions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_a_region_has_all_threads(number: int) -> None:
    runtime.set_num_threads(number)
    for _ in range(20):
        assert meet() == number


@pytest.mark.parametrize(("limit", "tasks"), [(-5, 1), (0, 1), (1, 1), (2, 2), (3, 3), (4, 3)])
def test_a_region_has_no_more_tasks_than_its_limit(limit: int, tasks: int) -> None:
    assert meet(limit) == tasks


@pytest.mark.parametrize(
    ("limit", "worth", "each", "tasks"),
    [
        (100, 100, 16, 48),
        (100, 100, 1, 3),
        (100, 13, 16, 12),  # as many for each thread
        (100, 5, 16, 3),
        (13, 100, 16, 13),
        (100, 2, 16, 2),
        (2, 100, 16, 2),
        (100, 1, 16, 1),
        (100, 0, 16, 1),
        (100, -7, 16, 1),
        (2**62, 2**62, 16, 48),
    ],
)
def test_tasks_of_a_region(limit: int, worth: int, each: int, tasks: int) -> None:
    """At most the limit, as many as the work is worth and a thread may have, each of them once."""
    for _ in range(20):
        seen: list[tuple[int, int]] = []

        def task(number: int, tasks: int, *_: Any, seen: list[tuple[int, int]] = seen) -> int:
            seen.append((number, tasks))
            return 0

        assert region(task, limit, worth, each)[0] == 0
        assert sorted(seen) == [(number, tasks) for number in range(tasks)]


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_a_late_worker_delays_its_own_task_alone(threads: int) -> None:
    """A worker doesn't go on with its first task before all that no worker has are done."""
    runtime.set_num_threads(threads)
    caller, late = threading.get_ident(), False
    for _ in range(1000):
        held: set[int] = set()
        done: list[int] = []
        finished = threading.Event()
        lock = threading.Lock()

        def task(
            number: int, tasks: int, *_: Any,
            held: set[int] = held, done: list[int] = done, finished: threading.Event = finished,
            lock: threading.Lock = lock,
        ) -> int:  # fmt: skip
            is_late = threading.get_ident() != caller and not finished.is_set()
            with lock:
                (held.add if is_late else done.append)(number)
                if len(held) + len(done) == tasks:
                    finished.set()
            return 0 if not is_late or finished.wait(30) else 1

        assert region(task, each=16)[0] == 0
        assert len(held) + len(done) == threads * 16
        late = late or bool(held)
        if late and len(done) > threads * 15:
            return
    assert late, "no worker took part"


def test_a_region_in_a_region_is_one_task() -> None:
    inner: list[tuple[int, int]] = []

    def note(number: int, tasks: int, *_: Any) -> int:
        inner.append((number, tasks))
        return 0

    assert region(lambda *_: region(note)[0])[0] == 0
    assert inner == [(0, 1)] * 3


def test_a_caller_that_finds_the_workers_taken_goes_on_alone() -> None:
    inside, done = threading.Event(), threading.Event()

    def task(number: int, *_: Any) -> int:
        inside.set()
        done.wait(30)
        return 0

    other = threading.Thread(target=region, args=(task,))
    other.start()
    assert inside.wait(30)
    assert meet() == 1
    done.set()
    other.join(30)
    assert meet() == 3


@pytest.mark.parametrize("each", [1, 4])
def test_the_first_failed_task_counts(each: int) -> None:
    def task(number: int, tasks: int, region: int, record: Any) -> int:
        record[:] = [number * 10 + i for i in range(8)]
        return 100 + number if number in failing else 0

    for failing in ({0}, {1}, {2}, {1, 2}, {0, 1, 2}, {3 * each - 1}):
        for _ in range(30):
            first = min(failing)
            expected = 100 + first, [first * 10 + i for i in range(8)]
            assert region(task, each=each) == expected
    failing = set()
    assert region(task, each=each) == (0, [0] * 8)


def test_barrier() -> None:
    barrier = _BARRIER(threads.barrier_address())
    arrived: list[int] = []

    def task(number: int, tasks: int, region: int, record: Any) -> int:
        for step in range(10):
            arrived.append(step)
            assert barrier(region, tasks) == 0
            if len(arrived) < (step + 1) * tasks:
                return 1
            assert barrier(region, tasks) == 0
        return 0

    assert region(task)[0] == 0
    assert len(arrived) == 30


def test_a_barrier_lets_go_when_a_task_fails() -> None:
    barrier = _BARRIER(threads.barrier_address())

    def task(number: int, tasks: int, region: int, record: Any) -> int:
        return 7 if number == 1 else 1 - barrier(region, tasks)

    assert region(task)[0] == 7


def test_workers_take_no_signals() -> None:
    masks: list[Any] = []

    def task(number: int, tasks: int, *_: Any) -> int:
        if threading.current_thread() is not threading.main_thread():
            masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        together.wait(30)
        return 0

    together = threading.Barrier(3)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert region(task)[0] == 0
    assert len(masks) >= 2  # a worker may have been faster than the caller
    assert all({signal.SIGINT, signal.SIGTERM, signal.SIGCHLD} <= mask for mask in masks)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


# -- Whether sleepers are woken -------------------------------------------------------------------


def asleep() -> None:
    """Returns when all workers sleep."""
    own = threading.get_native_id()
    tasks = [each for each in Path("/proc/self/task").iterdir() if each.name != str(own)]
    while any((each / "stat").read_text().rpartition(")")[2].split()[0] != "S" for each in tasks):
        time.sleep(0.001)


def threads_of_tasks(worth: int, wait_for: int = 1) -> int:
    """How many threads take part in a region. After the caller's first task each waits until so
    many have come."""
    seen: set[int] = set()
    enough = threading.Event()

    def task(number: int, *_: Any) -> int:
        seen.add(threading.get_ident())
        if len(seen) >= wait_for:
            enough.set()
        return 0 if number == 0 or enough.wait(30) else 1

    assert region(task, worth=worth, each=16)[0] == 0
    return len(seen)


_WITH_CONSTANTS = """
from tests.runtime.test_threads import *
threads_text._CONSTANTS |= {constants}
runtime.set_num_threads(3)
assert meet() == 3
asleep()
"""


@pytest.mark.parametrize(
    ("wake", "worth", "number"),
    [(2**40, 999, 1), (2**40, 1000, 2), (0, 999, 2), (0, 6, 2)],
    ids=["little work", "much work", "long tasks", "six long tasks"],
)
def test_sleepers_are_woken_where_it_pays(wake: int, worth: int, number: int) -> None:
    """`wake` ns are worth it, and surely 1000 tasks."""
    constants = {"WAKE": wake, "WORTH_WAKING": 1000, "SPIN": 0}
    check = f"""
for _ in range(20):
    asleep()
    found = threads_of_tasks({worth}, {number})
    assert found == 1 if {number} == 1 else found > 1
"""
    output_of(_WITH_CONSTANTS.format(constants=constants) + check)


def test_sleepers_are_woken_where_tasks_need_each_other() -> None:
    constants = {"WAKE": 2**40, "WORTH_WAKING": 2**62, "SPIN": 0}
    output_of(_WITH_CONSTANTS.format(constants=constants) + "assert meet() == 3\n")


def test_sleepers_are_woken_where_small_regions_follow_each_other() -> None:
    """For each of them alone it doesn't pay; together they take as long."""
    constants = {"WAKE": 3_000_000, "WORTH_WAKING": 2**62, "SPIN": 50_000_000}
    check = "while threads_of_tasks(2) == 1: pass\n"
    output_of(_WITH_CONSTANTS.format(constants=constants) + check)


# -- Where workers run ----------------------------------------------------------------------------


def workers_run_on(cpus: set[int], own: int) -> bool:
    """Whether both workers may run on `cpus` once a thread that runs on the CPU `own` has woken
    them. On a busy machine they may still have been awake."""
    return any(_masks({own}) == [cpus] * 2 for _ in range(20))


def _masks(own: set[int]) -> list[set[int]]:
    masks: dict[int, set[int]] = {}

    def start() -> None:
        caller = threading.get_native_id()

        def task(number: int, tasks: int, *_: Any) -> int:
            if threading.get_native_id() != caller:
                masks[threading.get_native_id()] = os.sched_getaffinity(0)
            together.wait(30)
            return 0

        os.sched_setaffinity(0, own)
        time.sleep(0.05)
        assert region(task)[0] == 0

    together = threading.Barrier(3)
    other = threading.Thread(target=start)
    other.start()
    other.join(30)
    assert len(masks) == 2
    return list(masks.values())


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")
def test_workers_keep_off_the_cpu_of_who_wakes_them() -> None:
    cpus = os.sched_getaffinity(0)
    assert meet() == 3
    for cpu in (*cpus, *cpus):
        assert workers_run_on(cpus - {cpu}, cpu)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")
def test_workers_stay_where_somebody_else_has_put_them() -> None:
    output_of("""
import contextlib
from tests.runtime.test_threads import *
first, second, *_ = sorted(os.sched_getaffinity(0))
runtime.set_num_threads(3)
assert meet() == 3
cpus = os.sched_getaffinity(0)
assert workers_run_on(cpus - {first}, first)
for thread in os.listdir("/proc/self/task"):
    with contextlib.suppress(ProcessLookupError):  # it was joined, but the system lags behind
        os.sched_setaffinity(int(thread), {first})
for cpu in (second, first, second, first):
    assert workers_run_on({first}, cpu)
""")


# -- fork and exit --------------------------------------------------------------------------------


def test_a_forked_child_has_workers_of_its_own() -> None:
    assert meet() == 3
    for _ in range(3):
        assert_in_child(lambda: meet() == 3 and meet() == 3)
        assert meet() == 3


def test_fork_while_a_region_is_at_work() -> None:
    inside, done = threading.Event(), threading.Event()

    def task(number: int, *_: Any) -> int:
        inside.set()
        done.wait(30)
        return 0

    other = threading.Thread(target=region, args=(task,))
    other.start()
    assert inside.wait(30)
    assert_in_child(lambda: meet() == 3)
    done.set()
    other.join(30)
    assert meet() == 3


def _meet_once(_: int) -> int:
    return meet()


def test_processes_of_multiprocessing() -> None:
    assert meet() == 3
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(_meet_once, range(4)).get(60) == [3] * 4


_START = """
from tests.runtime.test_threads import *
runtime.set_num_threads(3)
assert meet() == 3
"""


@pytest.mark.parametrize(
    "then",
    [
        "",
        "import time; time.sleep(0.3)",
        "raise SystemExit(0)",
        "import os; os._exit(0)",
        "threading.Thread(target=lambda: [meet() for _ in range(100)]).start()",
        "threading.Thread(target=lambda: [meet() for _ in range(10**6)], daemon=True).start()",
    ],
)
def test_the_interpreter_exits(then: str) -> None:
    output_of(_START + then)


def test_a_system_that_does_not_empty_pages_at_a_fork() -> None:
    output_of("""
from tests.runtime.test_threads import *
wipe_on_fork, refused = "madvise(pool, SIZE, 18)", "madvise(pool, SIZE, 999)"
assert wipe_on_fork in threads_text._PAGE
threads_text._PAGE = threads_text._PAGE.replace(wipe_on_fork, refused)
runtime.set_num_threads(3)
assert meet() == 3
assert_in_child(lambda: meet() == 3)
assert meet() == 3
""")


def test_a_system_that_has_no_threads_left() -> None:
    found = output_of("""
import resource
from tests.runtime.test_threads import *
assert meet(1) == 1
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + 2**25, resource.RLIM_INFINITY))
runtime.set_num_threads(50)
with runtime.num_threads(50):
    runtime.set_num_threads(2)
    region(lambda *_: 0)
    assert 1 < runtime.num_threads() < 50
assert runtime.num_threads() == 2
runtime.set_num_threads(50)
region(lambda *_: 0)
print(runtime.num_threads())
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
runtime.set_num_threads(5)
assert meet() == 5
""")
    assert 1 <= int(found) < 50


# -- How many -------------------------------------------------------------------------------------

_PRINT = "from minitvm import runtime; print(runtime.num_threads())"


def test_as_many_as_the_process_may_use() -> None:
    assert 1 <= int(output_of(_PRINT)) <= len(os.sched_getaffinity(0))
    cpu = min(os.sched_getaffinity(0))
    one = f"import os; os.sched_setaffinity(0, [{cpu}]); {_PRINT}"
    assert output_of(one) == "1\n"


def test_the_environment_says_how_many() -> None:
    assert output_of(_PRINT, MINITVM_NUM_THREADS="7") == "7\n"
    assert output_of(_PRINT, MINITVM_NUM_THREADS=" 2 ") == "2\n"
    twice = f"{_PRINT}; import os; os.environ['MINITVM_NUM_THREADS'] = '9'; print(9); {_PRINT}"
    assert output_of(twice, MINITVM_NUM_THREADS="5") == "5\n9\n5\n"


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "1.5", "²"])
def test_an_environment_that_makes_no_sense(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINITVM_NUM_THREADS", text)
    monkeypatch.setattr(threads, "_asked", {})
    monkeypatch.setattr(threads._pool, "_made", [])
    with pytest.raises(ValueError, match=f"^MINITVM_NUM_THREADS: expected a number .*{text!r}"):
        runtime.num_threads()
    with pytest.raises(ValueError, match=r"^MINITVM_NUM_THREADS: expected"):
        threads.parallel_for_address()


def test_set_num_threads() -> None:
    runtime.set_num_threads(4)
    assert runtime.num_threads() == 4
    assert meet() == 4
    runtime.set_num_threads(1)
    assert meet() == 1
    assert output_of(
        "from minitvm import runtime; runtime.set_num_threads(3); print(runtime.num_threads())"
    ) == "3\n"  # fmt: skip


def test_set_num_threads_while_a_region_is_at_work() -> None:
    """The region keeps its threads; the next one has the new number."""

    def task(number: int, tasks: int, *_: Any) -> int:
        runtime.set_num_threads(1 + number)
        seen.append(tasks)
        return 0

    for number in (3, 1, 5, 2):
        seen: list[int] = []
        runtime.set_num_threads(number)
        assert region(task)[0] == 0
        assert seen == [number] * number
        assert meet() == runtime.num_threads()


@pytest.mark.parametrize("number", [0, -3])
@pytest.mark.parametrize("name", ["set_num_threads", "num_threads"])
def test_at_least_one_thread(name: str, number: int) -> None:
    text = rf"^{name}: expected at least 1 thread, got {number}$"
    with pytest.raises(ValueError, match=text):
        getattr(runtime, name)(number)
    assert runtime.num_threads() == 3


@pytest.mark.parametrize("number", [2.0, "2", None, True])
@pytest.mark.parametrize("name", ["set_num_threads", "num_threads"])
def test_a_number_of_threads_is_an_integer(name: str, number: Any) -> None:
    if (name, number) == ("num_threads", None):
        return  # asks how many there are
    text = rf"^{name}: expected a number of threads, got {type(number).__name__}$"
    with pytest.raises(TypeError, match=text):
        getattr(runtime, name)(number)


def test_a_block_with_its_own_number() -> None:
    for number in (1, 2, 5):
        with minitvm.num_threads(number):
            assert runtime.num_threads() == meet() == number
        assert runtime.num_threads() == meet() == 3


def test_blocks_in_blocks() -> None:
    with runtime.num_threads(2):
        with runtime.num_threads(4):
            assert meet() == 4
            with pytest.raises(LookupError), runtime.num_threads(1):
                assert meet() == 1
                raise LookupError
            assert meet() == 4
        assert meet() == 2
        runtime.set_num_threads(5)  # that is for others, and for later
        assert runtime.num_threads() == meet() == 2
    assert runtime.num_threads() == meet() == 5


def test_a_block_is_for_its_thread() -> None:
    """Other threads have the common number, or blocks of their own; so does a forked child that
    goes on in the block."""
    found: dict[int, list[int]] = {}
    inside = threading.Barrier(3)

    def own(number: int) -> None:
        with runtime.num_threads(number):
            inside.wait(30)
            found[number] = [runtime.num_threads()]
            with turn:
                found[number].append(meet())
            inside.wait(30)

    turn = threading.Lock()  # a region that finds the workers taken is one task
    others = [threading.Thread(target=own, args=(number,)) for number in (1, 4)]
    for other in others:
        other.start()
    inside.wait(30)
    with turn:
        assert runtime.num_threads() == meet() == 3
    inside.wait(30)
    for other in others:
        other.join(30)
    assert found == {1: [1, 1], 4: [4, 4]}
    with runtime.num_threads(2):
        assert_in_child(lambda: runtime.num_threads() == meet() == 2)


def test_a_block_before_the_pool() -> None:
    code = "from minitvm import num_threads\nwith num_threads(7): print(num_threads())\n"
    assert output_of(code + "print(num_threads())", MINITVM_NUM_THREADS="5") == "7\n5\n"


@pytest.mark.parametrize(
    ("membership", "files", "cpus"),
    [
        ("0::/a/b", {"a/b/cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, 2.0),
        ("0::/a", {"a/cpu.max": "300000 100000", "cpu.max": "100000 100000"}, 1.0),
        ("0::/elsewhere", {"cpu.max": "50000 100000"}, 0.5),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {}, None),
        ("", {}, None),
        (
            "4:memory:/m\n3:cpu,cpuacct:/c\n0::/",
            {"cpu/c/cpu.cfs_quota_us": "250000\n", "cpu/c/cpu.cfs_period_us": "100000\n"},
            2.5,
        ),
        (
            "3:cpu,cpuacct:/c",
            {
                "cpu,cpuacct/cpu.cfs_quota_us": "100000",
                "cpu,cpuacct/cpu.cfs_period_us": "50000",
                "cpu,cpuacct/c/cpu.cfs_quota_us": "-1",
                "cpu,cpuacct/c/cpu.cfs_period_us": "50000",
            },
            2.0,
        ),
        ("2:cpuacct:/", {"cpu/cpu.cfs_quota_us": "1", "cpu/cpu.cfs_period_us": "1"}, None),
    ],
)
def test_quota(tmp_path: Path, membership: str, files: dict[str, str], cpus: float | None) -> None:
    (tmp_path / "self").write_text(membership)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert threads._cgroup_quota(tmp_path / "self", tmp_path) == cpus


# -- The machine code -----------------------------------------------------------------------------


def test_nothing_is_compiled_before_it_is_needed() -> None:
    code = "import minitvm\nfrom minitvm.runtime import threads\n"
    code += "from minitvm.runtime.device_api import memory_pool\n"
    code += "minitvm.runtime.num_threads()\n"
    code += "assert not threads._pool.is_made and not memory_pool._code.is_made"
    output_of(code)


# -- Workspaces -----------------------------------------------------------------------------------


def allocate(size: int) -> int | None:
    address: int | None = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)(
        workspace.workspaces().allocate
    )(size)
    return address


def give_back(address: int | None) -> None:
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(workspace.workspaces().give_back)(address)


def in_fresh_thread(check: Callable[[], None]) -> None:
    """`check` in a thread that has nothing at hand yet."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            check()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    if failed:
        raise failed[0]


def test_a_workspace_is_given_out_again() -> None:
    def check() -> None:
        for size in (0, 1, 100, 5000, 2**21 - 64, 2**21, 5 * 2**20 + 1):
            first = allocate(size)
            assert first is not None
            assert first % workspace.ALIGNMENT == 0
            ctypes.memset(first, 1, size)
            give_back(first)
            assert allocate(size) == first
            give_back(first)

    in_fresh_thread(check)


def test_nested_ones_are_apart() -> None:
    def check() -> None:
        held: list[tuple[int, int]] = []
        for size in (100, 100, 7000, 3_000_000, 64, 3_000_000, 0):
            address = allocate(size)
            assert address is not None
            held.append((address, size))
        for a, size in held:
            assert all(b + other <= a or a + size <= b for b, other in held if b != a)
        for address, _ in reversed(held):
            give_back(address)

    in_fresh_thread(check)


def test_sizes_that_no_memory_has() -> None:
    for size in (-1, 2**63 - 1, 2**62, 2**61, 2**50):
        assert allocate(size) is None
    give_back(None)


def test_what_is_kept_is_bounded() -> None:
    def check() -> None:
        before = mapped()
        size = pool_text.MOST_KEPT // 4
        blocks = [allocate(size) for _ in range(8)]
        assert mapped() - before > 7 * size
        for block in blocks:
            give_back(block)
        assert mapped() - before < pool_text.MOST_KEPT + size

    in_fresh_thread(check)


def test_what_is_too_small_goes_when_more_is_needed() -> None:
    def check() -> None:
        before = mapped()
        for size in range(10_000_000, 60_000_000, 5_000_000):
            give_back(allocate(size))
        assert mapped() - before < 200_000_000  # of 325 MB; a thread's own heap maps 64 or 128

    in_fresh_thread(check)


def test_threads_share_what_is_kept() -> None:
    before = mapped()
    for _ in range(20):
        in_fresh_thread(lambda: give_back(allocate(100_000_000)))
    assert mapped() - before < 300_000_000


def test_workspaces_of_a_forked_child() -> None:
    first = allocate(3_000_000)
    assert first is not None
    give_back(first)

    def check() -> bool:
        again = allocate(3_000_000)
        assert again is not None
        ctypes.memset(again, 1, 3_000_000)
        give_back(again)
        in_fresh_thread(lambda: give_back(allocate(3_000_000)))
        return again == first

    assert_in_child(check)
    assert allocate(3_000_000) == first
    give_back(first)
