"""The training loop, with Caffe's order of steps, log lines and numbers (docs/quirks.md, quirks 30 to 37)."""
from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.cl.command_list import RING
from ocaffe.cl.device import Device
from ocaffe.cl.outputs import Fetched
from ocaffe.cl.rates import rates_of
from ocaffe.cl.session import Session
from ocaffe.compiler.compile import CompiledNet, may_host
from ocaffe.compiler.compiled_nets import of_launches
from ocaffe.compiler.network import Network
from ocaffe.compiler.points import NetOfStep, plans_of
from ocaffe.formats.batch import with_batch
from ocaffe.formats.text import read_net, read_solver, write_text
from ocaffe.formats.upgrade import upgrade_solver
from ocaffe.formats.weights import Weights, read_weights, weight_files
from ocaffe.graph.exchange import Exchanges
from ocaffe.graph.options import NetOptions, Recompute
from ocaffe.ir.graph import Parameter
from ocaffe.ir.launch import Schedule
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role
from ocaffe.memory.curve import chosen_text, smallest_within
from ocaffe.memory.report import bytes_beside, kept_on_host
from ocaffe.parallel.transports import make_exchange
from ocaffe.parallel.world import ALONE, Agreement, World
from ocaffe.shown import Lines
from ocaffe.solver import snapshot as snapshots
from ocaffe.solver.average import Average
from ocaffe.solver.average_precision import Detections
from ocaffe.solver.best import Best
from ocaffe.solver.box_targets import BoxTargets
from ocaffe.solver.checks import check_outputs, check_solver
from ocaffe.solver.coverage import repeated
from ocaffe.solver.first_losses import FirstLosses
from ocaffe.solver.losses import SmoothedLoss
from ocaffe.solver.meter import Meter
from ocaffe.solver.nets import net_messages
from ocaffe.solver.policies import LearningRate
from ocaffe.solver.ranks import average_statistics, broadcast_state, join_ranks
from ocaffe.solver.rescue import Begin, rescued, whole_iteration
from ocaffe.solver.scoring import Means, Output, as_lists, detections_of, log_outputs, restart_scores, run_batches, segmentation_scores
from ocaffe.solver.update import Updater
from ocaffe.support import log

number = log.number
Pass = tuple[NetOptions, Updater | None]  # the options of a pass, and the update that it includes
REQUESTS = ("", "snapshot", "stop")  # of signals; of several ranks the last one in this list counts


class Solver:
    """Trains the net of a SolverParameter on one device.

    The loop calls `request` after every iteration and test batch; it returns the action of a signal: '', 'snapshot' or 'stop'.
    """

    def __init__(
        self,
        param: Any,
        device: Device,
        *,
        file: str | None = None,
        keep: frozenset[str] = frozenset(),
        weights: Sequence[str] = (),
        resume: str | None = None,
        keep_resume: bool = True,
        level: int | None = None,
        stages: Sequence[str] = (),
        allow_unknown_fields: bool = False,
        memory_limit: int | None = None,
        max_slowdown: float | None = None,
        recompute: Recompute = "auto",
        world: World = ALONE,
        exchange: str = "auto",
        gradient_bits: int = 32,
        batch: int = 0,
        prepare: Callable[[Any, int], Any] = lambda net, phase: net,
    ) -> None:
        """`param` is a SolverParameter or a path; `weights` overrides its weights; `resume` is a .solverstate. Raises Error.

        `keep_resume`: the files of this state are never removed, because a user named it; else they are snapshots like others.
        `memory_limit`: bytes on the device for all nets. `max_slowdown`: choose the smallest limit with which a step takes at most this share more time by
        the predicted times; `limit_note` says which. `recompute`: the values that backward recomputes. `world`: the ranks that train together.
        `exchange`: the transport of their gradients; `gradient_bits`: 32, or 16 for bfloat16 on the way.
        `batch`: the batch size of the TRAIN net, 0 for that of the file. `prepare`: changes the message of a net for a phase.
        """
        self.world, self.batch, self.prepare, self.allow_unknown_fields = world, batch, prepare, allow_unknown_fields
        self.param, self.file = self._settings(param, file, level, stages)
        state = snapshots.load_state(resume) if resume else None
        self.seed: int = world.broadcast(self._seed(state.random_seed if state else None))
        self._reset()
        check_solver(self.param, self.file)  # before the first lines of the log, so that its error stands alone
        log.info("solver.cpp:45", Lines("Initializing solver from parameters: ", *write_text(self.param).split("\n")))
        self.rate = LearningRate(self.param)
        self.session = Session(device, math.inf if memory_limit is None and max_slowdown is not None else memory_limit, apart=1)
        self.exchange = make_exchange(exchange, gradient_bits, self.session, world)
        files = weight_files(weights or self.param.weights)
        known = [state.learned_net] if state is not None and state.learned_net else [] if resume else files
        given = [read_weights(name) for name in known]
        self.precious = [*files, *([resume, *state.weights] if resume and state and keep_resume else [])]  # never removed
        self.network, self.test_networks = self._networks(given, fills=not resume)
        self._add_update()
        self._add_scores()
        self._observed = bool(keep)
        self.limit_note = ""  # for the log
        self.passes, self.test_options = self._options(keep, recompute, memory_limit, max_slowdown)
        self._bind()
        if self.exchange is not None:
            join_ranks(self, self.exchange)
        log.info("solver.cpp:57", "Solver scaffolding done.")
        if state is not None:
            log.info("sgd_solver.cpp:320", f"Restoring previous solver status from {resume}")
            snapshots.restore(self, resume or "", state, given)
        elif self.average is not None:
            self.average.restart()
        if world.several:
            broadcast_state(self)

    # -- construction ------------------------------------------------------------------------------------------------

    def _settings(self, param: Any, file: str | None, level: int | None, stages: Sequence[str]) -> tuple[Any, str | None]:
        """Return the SolverParameter in today's format, with the state of the TRAIN net, and its file."""
        if isinstance(param, str):
            file, param = param, read_solver(param, self.allow_unknown_fields, lambda text: log.warning("upgrade_proto.cpp:1", text))
        param = upgrade_solver(param)
        if level is not None:
            param.train_state.level = level
        param.train_state.stage.extend(stages)
        return param, file

    def _reset(self) -> None:
        """Set the state of the loop to that before the first iteration, and the functions that it calls to ones that do nothing."""
        self.iter = 0
        self.stopped = False
        self.begin: Begin | None = None  # of the last iteration that began
        self.tried = -1  # the iteration of the last snapshot that was begun
        self.tested_from: dict[int, dict[str, int]] = {}  # during a test: the data position at its start
        self.copied: dict[str, list[Parameter]] = {}  # the parameters of the TRAIN net that each file of weights has set
        self._agreed = Agreement(self.world)
        self._clips: deque[tuple[int, Fetched]] = deque()
        self._saved = time.monotonic()  # the time of the last snapshot, or of the start
        self.request: Callable[[], str] = lambda: ""
        self.on_record: Callable[[dict[str, Any]], None] = lambda record: None
        self.on_progress: Callable[[int], None] = lambda iteration: None
        self.on_start: Callable[[], None] = lambda: None  # before each iteration
        self.run_layers: Callable[[dict[str, float]], tuple[CompiledNet, Fetched] | None] = lambda words: None  # runs a pass layer by layer, for scripts
        self.on_gradients: Callable[[], None] = lambda: None  # before each update, if the update is separate from the passes

    def _add_update(self) -> None:
        """Add the update of the parameters, and their average if the solver has one."""
        self.updater = Updater(self.network.group, self.param, self.network.graph.guard)
        self._update: CompiledNet | None = None
        self._hosted = frozenset[Role]()  # the roles of persistent values in the host's memory, where passes and update are separate
        self.average = Average(self.session, self.updater) if self.updater.average is not None else None

    def _add_scores(self) -> None:
        """Add what follows the losses and the tests."""
        self.boxes = BoxTargets(self.network)
        for warning in repeated(self.param, self.test_networks):
            log.warning("solver.cpp:190", warning)
        tests = [network.graph for network in self.test_networks]
        check_outputs(self.param, tests, self.file)
        self.best = Best(self.param, tests, self.file) if self.param.HasField("best_output") else None
        self.losses = SmoothedLoss(self.param.average_loss)
        copied = {id(parameter) for parameters in self.copied.values() for parameter in parameters}
        self.first_losses = FirstLosses(self.param, self.network.graph, copied)
        if self.param.snapshot > 0 or self.param.snapshot_interval_seconds > 0 or self.best is not None:
            self._probe()

    def _probe(self) -> None:
        if self.world.first:
            snapshots.probe(snapshots.prefix_of(self.param, self.file), self.iter)

    def _seed(self, stored: int | None) -> int:
        if self.param.random_seed >= 0:
            return int(self.param.random_seed)
        return stored if stored is not None else time.time_ns() & 0x7FFFFFFFFFFF

    def _read(self, path: str) -> Any:
        return read_net(path, self.allow_unknown_fields, lambda text: log.warning("upgrade_proto.cpp:1", text))

    def _networks(self, weights: Sequence[Weights], fills: bool) -> tuple[Network, list[Network]]:
        """Return the TRAIN net and the TEST nets, with parameters from fillers and from `weights`.

        Not `fills`: `restore` copies the weights later, but layers need their shapes now.
        """
        files = weights if fills else []
        train, tests = net_messages(self.param, self._read, self.file)
        message = with_batch(self.prepare(train(), proto.TRAIN), self.batch)
        network = self._filled(Network(message, proto.TRAIN, self.session, self.seed, weights=weights), files)
        for source in network.inputs.sources.values():
            source.share = self.world.share
        messages = [self.prepare(test(), proto.TEST) for test in tests]
        networks = [self._filled(Network(each, proto.TEST, self.session, self.seed, owner=network, weights=weights), files) for each in messages]
        for each in networks:
            each.inputs.share(self.world.rank, self.world.size)
        return network, networks

    def _filled(self, network: Network, files: Sequence[Weights]) -> Network:
        network.limit_labels()
        network.fill_parameters()
        for weights in files:
            log.info("solver.cpp:72", f"Finetuning from {weights.path}")
            self.copied.setdefault(weights.path, network.copy_weights(weights))  # the TRAIN net is the first
        return network

    def _options(self, keep: frozenset[str], recompute: Recompute, limit: int | None, slowdown: float | None) -> tuple[list[Pass], list[NetOptions]]:
        """Return the passes of an iteration, and the options of each TEST net. With a limit each net knows the bytes of it that the other nets keep."""
        test = NetOptions(backward=False, keep=keep, observed_diffs=self._observed, debug=self.param.debug_info, recompute=recompute)
        train = replace(test, backward=True)
        if self.exchange is not None:
            ranks = self.world.size if self.param.synchronize_statistics else 1
            train = replace(train, in_flight=self.exchange.in_flight, late_rows=self.exchange.late_rows, statistics_ranks=ranks)
        passes = self._passes(train)
        count = len(passes)
        nets = [*((self.network, each) for each in passes), *((network, (test, None)) for network in self.test_networks)]
        if slowdown is not None:
            limit = self._limit_within(slowdown, nets)
        if limit is None:
            return passes, [options for _, (options, _) in nets[count:]]
        if hosted := self._to_host(limit, nets[count - 1 :]):
            self._hosted, self._update = hosted, None
            nets[:count] = [(self.network, (replace(options, on_host=hosted), None)) for _, (options, _) in nets[:count]]
        beside = bytes_beside([*(network.nets.unlimited(*each) for network, each in nets), *self._separate()])
        limited = [(replace(options, limit=limit, beside=size), update) for (_, (options, update)), size in zip(nets, beside)]
        return limited[:count], [options for options, _ in limited[count:]]

    def _to_host(self, limit: int, nets: Sequence[tuple[Network, Pass]]) -> frozenset[Role]:
        """Return the roles of persistent values in the host's memory under a limit, where passes and update are separate.

        It is the choice of one net with the last pass and the update, which `ocaffe plan` shows. `nets`: the last pass and the TEST nets.
        Raises Error if that net does not keep the limit.
        """
        options = replace(nets[0][1][0], limit=limit)
        if not (self._split_passes and may_host(options, self.session.device.target)):
            return frozenset()
        whole: list[tuple[Network, Pass]] = [(self.network, (options, self.updater)), *nets[1:]]
        beside = bytes_beside([network.nets.unlimited(*each) for network, each in whole])
        options = replace(options, beside=beside[0])
        found = self.network.nets.compiled(options, self.updater)
        self.network.nets.forget(options)
        return frozenset(root.role for root in kept_on_host([found.recording.schedule]))

    def _limit_within(self, slowdown: float, nets: Sequence[tuple[Network, Pass]]) -> int | None:
        """Return the smallest limit with which a step takes at most this share more time. None: no smaller plan does. All ranks take that of the first."""
        device, passes = self.session.device, len(nets) - len(self.test_networks)
        runs = [1, self.param.iter_size - 1][:passes] + [0] * len(self.test_networks)
        steps = [NetOfStep(partial(network.nets.nearest, *each), count) for (network, each), count in zip(nets, runs)]
        plans = plans_of(steps, device.target, rates_of(device), self._separate())
        chosen = smallest_within(plans, slowdown)
        self.limit_note = chosen_text(chosen, plans(None), slowdown)
        log.info("solver.cpp:50", self.limit_note)
        return self.world.broadcast(chosen.limit)

    def _separate(self) -> list[Schedule]:
        """Return the schedule of the separate update, if there is one."""
        return [self._update_net().recording.schedule] if self._split_passes else []

    def _passes(self, options: NetOptions) -> list[Pass]:
        """Return the passes of an iteration: one that includes the update; or the first, and one for all others.

        These overwrite the gradients or add to them. If a script can read gradients, all passes add, after the solver has cleared them, as in pycaffe.
        """
        if not self._split_passes:
            return [(options, self.updater)]
        return [(options.holding_gradients(add=self._observed or index > 0), None) for index in range(min(self.param.iter_size, 2))]

    def _bind(self) -> None:
        """Bind all command lists of the loop in one call, so that their programs are built together."""
        command_lists = [compiled.commands for compiled in self.train_nets()]
        command_lists += [network.nets.compiled(options).commands for network, options in zip(self.test_networks, self.test_options)]
        self.session.bind(command_lists)

    @property
    def _split_passes(self) -> bool:
        """Whether the update is a separate command list after forward and backward."""
        return self.param.iter_size > 1 or self.param.snapshot_diff or self._observed

    def train_nets(self) -> list[CompiledNet]:
        """Return all compiled nets that an iteration runs, the passes first."""
        passes = [self.network.nets.compiled(*each) for each in self.passes]
        return [*dict.fromkeys(passes), *([self._update_net()] if self._split_passes else [])]

    def _update_net(self) -> CompiledNet:
        """Return the separate update, from the gradients of the passes."""
        if self._update is None:
            rec = Recorder(self.session.device.target, train=True, on_host=self._hosted)
            update = partial(self.updater, rec, self.network.group.held, rec.step)
            if self.exchange is None:
                update()
            else:
                exchanges = Exchanges(rec, 0)
                exchanges.add(self.network.group.held, 0, update)
            self._update = of_launches(self.session, rec)
        return self._update

    # -- history -----------------------------------------------------------------------------------------------------

    def history_views(self) -> list[tuple[Parameter, Ref | None]]:
        """Return every history blob in the order of a .solverstate: all parameters, and again for a rule with two histories.

        None stands for a blob that is always zero.
        """
        group = self.network.group
        offsets = {id(parameter): offset for parameter, offset in zip(group.params, group.offsets)}
        return [
            (parameter, history.view(parameter.shape, offsets[id(parameter)]) if parameter.propagate else None)
            for history in self.updater.history
            for parameter in self.network.graph.params
        ]

    def history_arrays(self, shared: bool = False) -> Iterator[np.ndarray]:
        """Yield the history blobs. `shared`: on a CPU not copies but the memory itself, to be dropped before the next run."""
        for parameter, ref in self.history_views():
            read = self.session.values if shared else self.session.read
            yield np.zeros(parameter.shape, np.float32) if ref is None else read(ref)

    # -- the loop ----------------------------------------------------------------------------------------------------

    def solve(self) -> None:
        """Train to max_iter, followed by Caffe's final snapshot, loss and test.

        If an error ends the training, the last whole iteration is saved where possible. Raises Error if the trained weights are not finite.
        """
        with rescued(self):
            self._solve()

    def _solve(self) -> None:
        param = self.param
        if param.snapshot_after_train:
            self._probe()
        log.info("solver.cpp:289", f"Solving {self.network.graph.message.name}")
        log.info("solver.cpp:290", f"Learning Rate Policy: {param.lr_policy}")
        start = self.iter
        self.step(param.max_iter - self.iter)
        if param.snapshot_after_train and (not param.snapshot or self.iter % param.snapshot != 0 or self.iter == start):
            self._average_statistics()
            self.snapshot()
        elif self.tried != self.iter:
            self.tried = self.iter  # if they are not finite, they are not saved either
            snapshots.check_finite(self.network)
        if self.stopped:
            log.info("solver.cpp:322", "Optimization stopped early.")
            return
        if param.display and self.iter % param.display == 0:
            loss = self._forward_loss()
            self.losses.add(loss, self.iter)
            log.info("solver.cpp:327", f"Iteration {self.iter}, loss = {number(self.losses.value)}")
        if param.test_interval and self.iter % param.test_interval == 0:
            self.test_all()
        log.info("solver.cpp:332", "Optimization Done.")

    def step(self, iterations: int) -> None:
        """Run `iterations` iterations.

        The host waits for the device only for a display line, a test, a snapshot, or the pass RING passes before.
        """
        param = self.param
        start, stop = self.iter, self.iter + iterations
        self.losses.restart()
        self.network.clear_guard()
        self._start_prefetch()
        pending: deque[tuple[Begin, int, CompiledNet, Fetched]] = deque()
        exchange = self.exchange
        meter = Meter(self.iter, self.network.inputs.prefetchers.values(), (lambda: exchange.exposed) if exchange is not None else (lambda: 0.0))
        while self.iter < stop:
            if param.test_interval and self.iter % param.test_interval == 0 and (self.iter > 0 or param.test_initialization):
                self._harvest(pending, start)
                self.test_all()
                if self.stopped:
                    break
            rate, advanced = self.rate(self.iter)
            display = bool(param.display) and self.iter % param.display == 0
            with whole_iteration(self) as begin:
                self.on_start()
                for index in range(param.iter_size):
                    compiled, fetched = self._pass(index, rate)
                    pending.append((begin, index, compiled, fetched))
                    if len(pending) >= RING:
                        pending[-RING][3].finish()
                    self._harvest(pending, start, wait=display and index == param.iter_size - 1)
                if display:
                    self._display(compiled, fetched, rate, meter)
                if self._split_passes:
                    self.on_gradients()
                    fetched = self._run_update(rate)
            if self.updater.clips:
                self._clips.append((self.iter, fetched))
                self._report_clipping(wait=display)
            if advanced:
                log.info("sgd_solver.cpp:60", f"MultiStep Status: Iteration {self.iter}, step = {self.rate.current_step}")
            if display:
                log.info("sgd_solver.cpp:112", f"Iteration {self.iter}, lr = {number(rate)}")
            self.iter += 1
            self.on_progress(self.iter)
            wanted = REQUESTS[self._agreed(REQUESTS.index(self._wanted()))]
            if wanted == "snapshot" or (param.snapshot and self.iter % param.snapshot == 0):
                self._harvest(pending, start)
                self._average_statistics()
                self.snapshot()
            if wanted == "stop":
                self.stopped = True
                break
        self._harvest(pending, start)
        self._report_clipping()
        late = REQUESTS[self._agreed.finish()]
        if late == "snapshot":
            self._average_statistics()
            self.snapshot()
        self.stopped |= late == "stop"

    def _wanted(self) -> str:
        """Return the action of a signal, or 'snapshot' if snapshot_interval_seconds have passed since the last one. Rank 0's clock counts."""
        interval, now = self.param.snapshot_interval_seconds, time.monotonic()
        wanted = self.request()
        if not wanted and interval and self.world.first and now - self._saved >= interval:
            wanted, self._saved = "snapshot", now  # several ranks take it an iteration later, and it must not be requested again until then
        return wanted

    def _pass(self, index: int, rate: float) -> tuple[CompiledNet, Fetched]:
        """Enqueue one forward and backward pass, and the update if the command list includes it."""
        self.network.follow_batch()
        compiled = self.network.nets.bound(*self.passes[min(index, len(self.passes) - 1)])  # not bound yet if the batch has another shape
        commands = compiled.commands
        if self._observed and index == 0:
            self.session.clear(self.network.group.held)
        words = {**self.updater.words(self.iter, rate), "PASS": index, **self._ranks}
        if (ran := self.run_layers(words)) is not None:
            return ran
        commands.set_step(**words)
        compiled = self.network.nets.run(compiled)
        fetched = compiled.commands.fetch()
        if self.param.display and self.iter % self.param.display == 0 and self.world.first:  # Caffe's TRAIN nets log only in displayed iterations
            self.network.log_debug(compiled, fetched, backward=True)
        return compiled, fetched

    def _run_update(self, rate: float) -> Fetched:
        commands = self._update_net().commands
        commands.set_step(**self.updater.words(self.iter, rate))
        commands.run()
        return commands.fetch()

    def apply_update(self) -> None:
        """Update the parameters from the stored gradients of the net."""
        rate, _ = self.rate(self.iter)
        self._run_update(rate)
        if self.updater.guard is not None and (found := self.session.read(self.updater.guard))[0]:
            raise self.network.wrong_label(found)

    def _harvest(self, pending: deque[tuple[Begin, int, CompiledNet, Fetched]], start: int, wait: bool = True) -> None:
        """Process the losses of passes, oldest first: all of them, or those that have arrived."""
        while pending and (wait or pending[0][3].arrived):
            begin, index, compiled, fetched = pending.popleft()
            iteration = begin.iteration
            if compiled.recording.wrong_label is not None:
                self._check_labels(begin, compiled, fetched.value(compiled.recording.wrong_label))
            loss = self.network.loss(compiled, fetched)
            for warning in self.first_losses.add(float(loss), iteration):
                log.warning("solver.cpp:239", warning)
            self.losses.add_pass(loss, index, self.param.iter_size, iteration - start)

    def _check_labels(self, begin: Begin, compiled: CompiledNet, found: np.ndarray) -> None:
        """Raise Error if a pass of the iteration `begin` had a wrong label. Since then updates did nothing, so the weights are those before it."""
        if found[0]:
            problem = self.network.wrong_label(found)
            problem.fact = f"iteration {begin.iteration}: {problem.fact}"
            begin.restore(self)
            self.session.changed = compiled.commands.changes_before_update
            raise problem

    def _report_clipping(self, wait: bool = True) -> None:
        """Log gradient clipping, oldest iteration first: in all iterations, or in those whose outputs have arrived."""
        while self._clips and (wait or self._clips[0][1].arrived):
            _, fetched = self._clips.popleft()
            scale, norm = fetched.value(self.updater.clip)
            if scale == 1:
                continue
            norms = f"L2 norm {number(norm)} > {number(self.param.clip_gradients)}"
            log.info("sgd_solver.cpp:95", f"Gradient clipping: scaling down gradients ({norms}) by scale factor {number(scale)}")

    def _display(self, compiled: CompiledNet, fetched: Fetched, rate: float, meter: Meter) -> None:
        reading = meter.read(self.iter)
        speed = reading.iterations / reading.elapsed if reading.elapsed else 0.0
        timing = f"{number(speed)} iter/s, {number(reading.elapsed)}s/{self.param.display} iters"
        loss = self.world.mean(np.asarray(self.losses.value))
        log.info("solver.cpp:239", f"Iteration {self.iter} ({timing}), loss = {number(loss)}")
        values = [(name, self.world.mean(each), weight) for name, each, weight in self.network.output_values(compiled, fetched)]
        log_outputs("solver.cpp:258", "    Train net output #: ", values)
        record = {"phase": "train", "iteration": self.iter, "loss": float(loss), "lr": rate, "outputs": as_lists(values)}
        if reading.elapsed and self.network.inputs.sources:
            record["data_wait"], record["data_bottleneck"] = reading.wait, reading.bottleneck
            log.info("solver.cpp:239", f"    {reading.text()}")
        if reading.elapsed and self.world.several:
            record["exchange_wait"] = reading.exchange_wait
            log.info("solver.cpp:239", f"    exchange wait {100 * reading.exchange_wait:.1f} %")
        self.on_record(record)

    def _forward_loss(self) -> np.float32:
        """Run one more TRAIN forward pass, which consumes a batch (docs/quirks.md, quirk 35)."""
        self._start_prefetch()
        self.network.follow_batch()
        compiled = self.network.nets.bound(*self.passes[0])
        compiled.commands.set_step(RATE=0.0, ITERATION=self.iter, PASS=0, **self._ranks)
        compiled = self.network.nets.run(compiled, stop=lambda recording: recording.forward_end)
        return np.float32(self.world.mean(np.asarray(self.network.loss(compiled, compiled.commands.fetch()))))

    @property
    def _ranks(self) -> dict[str, int]:
        """The words of the step buffer that number the samples over all ranks."""
        return {"SAMPLE": self.world.rank, "OTHER_RANKS": self.world.size - 1}

    # -- testing -----------------------------------------------------------------------------------------------------

    def _average_statistics(self) -> None:
        """Average BatchNorm's running statistics over all ranks if the solver says so. All ranks call this together."""
        if self.param.average_statistics and self.world.several:
            average_statistics(self)

    def test_all(self) -> None:
        """Test every TEST net. Write a snapshot if the result is the best so far."""
        self._average_statistics()
        with self.average.in_net(bool(self.param.ema_test)) if self.average is not None else contextlib.nullcontext(), self.boxes.usable():
            outputs = []
            for index in range(len(self.test_networks)):
                if not self.stopped:
                    outputs.append(self.test(index))
        if self.stopped:
            return  # tested_from stays for the following snapshot: a resumed run repeats the test from there
        if self.best is not None:
            if self.best.tested(self.iter, outputs) and self.world.first:
                snapshots.snapshot(self, best=True)  # a run that resumes from it repeats this test
            self.stopped = self.best.exhausted(self.iter)
        if not self.stopped:
            self.tested_from.clear()

    def test(self, index: int) -> list[Output]:
        """Return and log the mean of every output over test_iter batches, and scores over all of them. Stops early if `request` returns 'stop'."""
        log.info("solver.cpp:347", f"Iteration {self.iter}, Testing net (#{index})")
        network = self.test_networks[index]
        detections = detections_of(network.graph, self.param.ap_version)
        means, results = Means(detections), []
        restart_scores(network, self.world)
        network.inputs.start()
        self.tested_from[index] = network.inputs.cursor
        for compiled, fetched in run_batches(network, self.test_options[index], self.param.test_iter[index]):
            loss = network.loss(compiled, fetched) if self.param.test_compute_loss else np.float32(0)
            results.append((loss, network.output_values(compiled, fetched)))
            wanted = "" if self.world.several else self._wanted()  # several ranks agree on requests after an iteration
            if wanted == "snapshot":
                self.snapshot()
            elif wanted == "stop":
                self.stopped = True
                log.info("solver.cpp:380", "Test interrupted.")
                return []
        for loss, outputs in self.world.interleave(results):
            means.add(loss, outputs)
        if self.param.test_compute_loss:
            log.info("solver.cpp:394", f"Test loss: {number(means.mean_loss)}")
        scores = [*means.outputs, *segmentation_scores(network.graph, self.world)]
        log_outputs("solver.cpp:414", "    Test net output #: ", scores, {name: list(self._class_lines(found)) for name, found in detections.items()})
        record = {"phase": "test", "net": index, "iteration": self.iter, "outputs": as_lists(scores)}
        if detections:
            record["average_precision"] = {name: {label: each[2] for label, each in found.by_class().items()} for name, found in detections.items()}
        self.on_record(record)
        return scores

    def _class_lines(self, detections: Detections) -> Iterator[str]:
        """Yield a line for the AP of each class, if show_per_class_result is set. Warn about classes without detections."""
        for label, (_, found, precision) in detections.by_class().items():
            if not found:
                log.warning("solver.cpp:511", f"Missing true_pos for label: {label}")
            elif self.param.show_per_class_result:
                yield f"class{label}: {number(precision)}"

    # -- state -------------------------------------------------------------------------------------------------------

    def snapshot(self) -> str:
        """Write weights and state. Return the path of the state. Of several ranks the first one writes; the others return ''."""
        self.tried = self.iter
        path = snapshots.snapshot(self) if self.world.first else ""
        self._saved = time.monotonic()
        return path

    def restore(self, path: str) -> None:
        """Continue from a .solverstate."""
        snapshots.restore(self, path)

    def _start_prefetch(self) -> None:
        for network in [self.network, *self.test_networks]:
            network.inputs.start()

    def close(self) -> None:
        """Stop reading data, and end the exchange."""
        for network in [self.network, *self.test_networks]:
            network.close()
        if self.exchange is not None:
            self.exchange.close()
