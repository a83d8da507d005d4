"""A random walk over everything that a Program may ask of a store, proved after each step."""

from __future__ import annotations

import collections
import random

import hypothesis
import pytest
from hypothesis import stateful

from ninfer_core.contract.errors import EngineFailure
from ninfer_core.store import (
    ContextStore,
    Demand,
    HistoryLease,
    Ledger,
    LogicalPage,
    Plane,
    ProtectedRangeError,
    Reservation,
    StoreLayout,
    UnitPool,
)
from ninfer_core.testing.store_workload import (
    STATE,
    Holder,
    StoreWorkload,
    contents,
    frontiers,
)

POOLS = ("main", "draft")
PAGE_BYTES = 512


def two_ranks(units: int) -> tuple[Plane, ...]:
    """Rank 1 is the smaller one, so it bounds the pool."""
    return (Plane("kv", 0, units + 2, PAGE_BYTES - 64), Plane("kv", 1, units, 64))


def small_store(pages: int = 14, slots: int = 6, host_pages: int = 8) -> ContextStore:
    return ContextStore(
        StoreLayout(
            page_pools={name: two_ranks(pages) for name in POOLS},
            slot_pools={STATE: two_ranks(slots)},
            table_rows=3,
            table_columns=8,
            host_bytes=host_pages * PAGE_BYTES,
        )
    )


class World(StoreWorkload):
    """The workload with truncation, leases and the host tier, driven by plain numbers."""

    def __init__(self, store: ContextStore | None = None) -> None:
        super().__init__(store or small_store())
        self.leases: list[tuple[HistoryLease, list[int]]] = []
        self.done: collections.Counter[str] = collections.Counter()

    def truncate(self, holder: Holder, distance: int) -> bool:
        """Go back over committed tokens, where no one else needs more than is kept."""
        floor = max((len(saved.tokens) for saved in holder.saved), default=0)
        keep = max(floor, len(holder.tokens) - distance)
        if floor:
            with pytest.raises(ProtectedRangeError):
                self.store.histories.truncate(holder.history, {"main": floor - 1})
        blocked = [pool for pool in POOLS if self._needed_further(holder, keep, pool)]
        for pool in blocked:
            with pytest.raises(ProtectedRangeError):
                self.store.histories.truncate(holder.history, {pool: frontiers(keep)[pool]})
            self.done["truncation refused"] += 1
        if blocked:
            return True
        self.store.histories.truncate(holder.history, frontiers(keep))
        holder.tokens = holder.tokens[:keep]
        self._advance_state(holder)
        return True

    def lease(self, holder: Holder) -> bool:
        """A copy of the whole record is in flight until the lease ends."""
        at = frontiers(len(holder.tokens))
        self.leases.append((self.store.histories.lease(holder.history, at), list(holder.tokens)))
        return True

    def fork(self, holder: Holder, index: int) -> bool:
        copied = bool(len(holder.point(index).tokens) % 64)
        forked = super().fork(holder, index)
        self.done["tail copied"] += forked and copied
        return forked

    def release_lease(self, index: int) -> bool:
        if not self.leases:
            return False
        self.leases.pop(index % len(self.leases))[0].release()
        return True

    def demote(self, holder: Holder, limit: int) -> bool:
        """Copy up to ``limit`` pages of a record to the host; drop idle device replicas."""
        lease = self.store.histories.lease(holder.history, frontiers(len(holder.tokens)))
        missing = [
            (pool, pin)
            for pool in POOLS
            for pin in lease.spaces[pool].pins
            if not pin.page.on_host(pin.columns) and pin.page.device is not None
        ]
        for pool, pin in missing[:limit]:
            self._page_to_host(pool, pin)
        lease.release()
        for pool in POOLS:
            for page in self.store.spaces[pool].directory(holder.history.spaces[pool]):
                if self.store.replicas[pool].may_drop_device(page):
                    self.store.replicas[pool].drop_device(page)
                    self.done["page demoted"] += 1
        return True

    def restore(self, holder: Holder) -> bool:
        """Bring a record's pages back to any free units, in one all-or-none grant."""
        lease = self.store.histories.lease(holder.history, frontiers(len(holder.tokens)))
        pins = {
            pool: [pin for pin in lease.spaces[pool].pins if pin.page.device is None]
            for pool in POOLS
        }
        grant = self.reserve(Demand({pool: len(missing) for pool, missing in pins.items()}))
        if grant is not None:
            for pool, missing in pins.items():
                for pin in missing:
                    self._page_to_device(pool, pin, grant)
            assert grant.settle().empty
        lease.release()
        return grant is not None

    def step(self, action: str, pick: int, a: int, b: int) -> None:
        """Do ``action`` on the ``pick``-th holder of its kind, then prove everything."""
        self.done[action] += self._do(action, pick, a, b)
        self.verify()

    def verify(self) -> None:
        super().verify()
        for lease, tokens in self.leases:
            for pool, expected in contents(tokens):
                pages = [pin.page for pin in lease.spaces[pool].pins]
                self.device.assert_content(pool, pages, expected)

    def close(self) -> None:
        while self.leases:
            self.release_lease(0)
        super().close()

    def _do(self, action: str, pick: int, a: int, b: int) -> bool:
        if action in ("start", "release_lease"):
            return self.start() if action == "start" else self.release_lease(pick)
        runs = action in ("unit", "snapshot", "finish", "truncate")
        group = self.running if runs else self.records
        if action in ("fork", "share"):
            group = [holder for holder in [*self.running, *self.records] if holder.saved]
        if not group:
            return False
        produced = a % 150 + 1
        arguments = {
            "unit": (produced, b % (produced + 1), b % 3 * 35),
            "finish": (b % 4 > 0,),
            "truncate": (a % 80,),
            "resume": (b, a % 3 == 0),
            "demote": (b % 9,),
        }
        rest = () if action in ("snapshot", "lease", "restore") else (b,)
        return getattr(self, action)(group[pick % len(group)], *arguments.get(action, rest))

    def _page_to_host(self, pool: str, pin) -> None:
        grant = self.reserve(Demand(host_extents=(PAGE_BYTES,)))
        if grant is not None:
            extent = grant.draw_extent()
            self.device.to_host(pool, pin.page.device.location, extent, pin.columns)
            self.store.replicas[pool].publish_host(pin, extent)
            grant.settle()

    def _page_to_device(self, pool: str, pin, grant: Reservation) -> None:
        replicas = self.store.replicas[pool]
        unit = replicas.receive(grant)
        self.device.to_device(pool, pin.page.host.location, unit, pin.columns)
        replicas.publish_device(pin, unit)
        self.done["page restored"] += 1

    def _needed_further(self, holder: Holder, keep: int, pool: str) -> bool:
        keep, end = frontiers(keep)[pool], frontiers(len(holder.tokens))[pool]
        index, columns = divmod(keep, 64)
        if keep == end or not columns:
            return False
        page = self.store.spaces[pool].directory(holder.history.spaces[pool])[index]
        return max(self._other_needs(holder, page, index, pool), default=0) > columns

    def _other_needs(self, me: Holder, page: LogicalPage, index: int, pool: str) -> list[int]:
        pins = [pin for lease, _ in self.leases for pin in lease.spaces[pool].pins]
        needs = [pin.columns for pin in pins if pin.page is page]
        for other in [*self.running, *self.records]:
            directory = self.store.spaces[pool].directory(other.history.spaces[pool])
            if other is not me and page in directory:
                needs.append(min(64, frontiers(len(other.tokens))[pool] - 64 * index))
        return needs


ACTIONS = (
    *("start", "unit", "unit", "unit", "unit", "snapshot", "finish", "finish", "truncate"),
    *("drop_point", "resume", "resume", "fork", "fork", "share", "lease", "release_lease"),
    *("demote", "restore", "restore"),
)


@pytest.fixture
def new_world():
    """The class, so that a state machine can begin afresh for each example."""
    return World


@pytest.fixture
def actions() -> tuple[str, ...]:
    return ACTIONS


@pytest.fixture(scope="session")
def explore():
    """``explore(machine, examples, steps)``: run a state machine, the same way each time."""

    def run(machine, examples: int = 40, steps: int = 50) -> None:
        settings = hypothesis.settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        stateful.run_state_machine_as_test(machine, settings=settings)

    return run


@pytest.fixture
def walk():
    """``walk(seed, steps)``: a random walk to its end; returns how often each step was done."""

    def run(seed: int, steps: int) -> collections.Counter[str]:
        world, choose = World(), random.Random(seed)
        for _ in range(steps):
            world.step(choose.choice(ACTIONS), *(choose.randrange(1000) for _ in range(3)))
        world.close()
        return world.done

    return run


@pytest.fixture
def is_noticed(walk):
    """``is_noticed()``: whether one of some walks fails, as it must when a bug was put in.

    With ``by_content`` only wrong content or a wrongly allowed step counts.
    """

    def run(by_content: bool = False) -> bool:
        for seed in range(30):
            try:
                walk(seed, steps=120)
            except (AssertionError, pytest.fail.Exception):
                return True
            except EngineFailure:
                if not by_content:
                    return True
        return False

    return run


@pytest.fixture
def store() -> ContextStore:
    return small_store()


@pytest.fixture
def new_pool():
    """``new_pool(units, name="main")``: a pool of one plane."""

    def make(units: int, name: str = "main") -> UnitPool:
        return UnitPool(name, [Plane("kv", 0, units, PAGE_BYTES)])

    return make


@pytest.fixture
def grant_of():
    """``grant_of(pool, count)``: a reservation of its own ledger."""

    def make(pool: UnitPool, count: int) -> Reservation:
        granted = Ledger([pool]).reserve(Demand({pool.name: count}))
        assert isinstance(granted, Reservation)
        return granted

    return make
