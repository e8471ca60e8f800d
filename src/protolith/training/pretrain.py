"""The one place that builds every part of a run.

Comes in: a config and a ``Request``. Goes out: a ``TrainState``. In order: join the other ranks, claim the
output folder, read the tokenizer, open the data, plan, build the model, come back to a checkpoint,
train, export. Each resource is entered in one ``ExitStack``; whatever ends the run, the folder says so.
Every rank runs this; what only rank 0 does is in ``training/front.py`` and at ``is_main`` here.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from protolith.config.availability import check_available
from protolith.config.checks import Say, same_name
from protolith.config.load import LoadedConfig
from protolith.config.plan import Plan
from protolith.config.schema import TrainConfig
from protolith.data.cache import TokenizingStopped
from protolith.data.ledger import Ledger
from protolith.data.row_ranges import merged
from protolith.data.stream_loader import StreamLoader
from protolith.data.tokenizer import TextTokenizer, load_tokenizer
from protolith.distributed.engine import Engine
from protolith.distributed.world import World, is_lost_contact, joined, lost_contact
from protolith.errors import DataError, NoSpaceError, OutOfMemoryError, UsageError, WorkerLostError
from protolith.formats.checkpoint_files import step_folder
from protolith.formats.rundir import RunDir, write_json
from protolith.model.build import BuiltModel, build_model, resolve_model_dir
from protolith.model.export import export_model, write_companions
from protolith.model.flops import peak_flops
from protolith.model.positions import check_row_length
from protolith.tensors.stored import weights_of
from protolith.training import banner
from protolith.training.agreed_stop import AgreedStop
from protolith.training.datasets import Datasets, open_datasets
from protolith.training.engine_setup import build_engine
from protolith.training.front import open_checkpoints, open_front, open_monitors
from protolith.training.identity import run_identity
from protolith.training.loaders import held_out_loader, step_loader
from protolith.training.loop import Loop, RunState
from protolith.training.monitors.console import Console
from protolith.training.output_folder import strangers
from protolith.training.passes import mixture_lines
from protolith.training.planning import plan_for
from protolith.training.request import Request, TrainState
from protolith.training.restore import restore
from protolith.training.resume import find_checkpoint, parse_consent, points_elsewhere, require_folder
from protolith.training.samples import Sampler
from protolith.training.schedule import Schedule
from protolith.training.space import check_space
from protolith.training.status import Status
from protolith.training.stop import StopFlag, StopRequested
from protolith.training.suspects import Suspects


def run(given: TrainConfig | LoadedConfig, request: Request) -> TrainState:
    """Run a config here, to its end or to a stop; a ``LoadedConfig`` brings the names of its file."""
    check_available(given)
    config = given.config if isinstance(given, LoadedConfig) else given
    spoken = (*request.spoken, *(given.warnings if isinstance(given, LoadedConfig) else ()))
    consent = parse_consent(request.accept_changes)
    run_dir = RunDir(Path(config.output.dir).expanduser())
    require_folder(run_dir, request.resume)
    spoken = (*spoken, *strangers(run_dir))
    continues = request.resume is not None and not points_elsewhere(request.resume, run_dir)
    with ExitStack() as stack:
        stop = request.stop or stack.enter_context(StopFlag())
        world = stack.enter_context(joined())
        _check_ranks(config, request, world)
        quiet = "console" not in config.logging.backends
        console = stack.enter_context(Console(request.stream, quiet=quiet, silent=not world.is_main))
        front = open_front(
            stack, world, run_dir, console, stop, resume=continues, overwrite=request.overwrite
        )
        loaded = request.loaded is not None
        console.info(banner.init_line(config.model.init, config.model.name, loaded=loaded))
        for text in spoken:
            console.warn(text)
        for text in front.notes:
            console.info(text)
        say = given.say if isinstance(given, LoadedConfig) else same_name
        own = _Run(config, request, run_dir, console, stop, front.status, consent, world, say)
        try:
            return _with_typed_errors(own, stack)
        except (StopRequested, TokenizingStopped, WorkerLostError) as error:
            if isinstance(error, WorkerLostError) and (own.began or not stop.requested):
                raise  # else: all were asked to stop, and another rank left first
            by = stop.by or "signal"
            front.status.update(state="stopped", stopped_by=by)
            console.ended("stopped before a step was trained; what was saved before stands")
            return TrainState(
                global_step=front.before.get("step", 0),
                epoch=0.0,
                tokens=front.before.get("tokens", 0),
                metrics={},
                run_dir=run_dir.root,
                stopped_by=by,
            )


def _with_typed_errors(own: _Run, stack: ExitStack) -> TrainState:
    """The run; memory that is full and processes that are gone are told as such, whoever noticed."""
    try:
        return own.run(stack)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if own.world.size > 1 and is_lost_contact(error):
            raise lost_contact(error) from error
        if type(error) is RuntimeError and "can't allocate memory" not in str(error):
            raise
        raise OutOfMemoryError(
            "out of memory: " + " ".join(str(error).split())[:300],
            hint="lower trainer.batch_size and raise gradient_accumulation, shorten data.max_seq_length, "
            "or set model.activation_checkpointing: full",
        ) from error


@dataclass
class _Run:
    config: TrainConfig
    request: Request
    run_dir: RunDir
    console: Console
    stop: StopFlag
    status: Status
    consent: frozenset[str]
    world: World
    say: Say
    #: training has begun: from here on ranks stop together
    began: bool = False

    def run(self, stack: ExitStack) -> TrainState:
        config, console, world = self.config, self.console, self.world
        if not self.run_dir.config.exists():
            self._write_record(None)
        resume = self.request.resume
        folder = self._checkpoint(resume) if resume is not None else None
        self.stop.raise_if_requested()
        tokenizer = self._tokenizer()
        built = self._model(tokenizer, world)
        datasets = self._datasets(tokenizer, built)
        plan = self._plan(datasets, built, world)
        about_sources, of_sources = mixture_lines(datasets, plan)
        for text in (*plan.warnings, *datasets.warnings, *of_sources):
            console.warn(text)
        for text in about_sources:
            console.info(text)
        self.stop.raise_if_requested()
        engine = build_engine(config, built, plan, world, console)
        identity = run_identity(
            config,
            plan,
            data=datasets.identity,
            tokenizer_digest=tokenizer.digest,
            hf_config=built.hf_config.to_dict(),
        )

        self._check_same(identity, plan)

        def companions(folder: Path) -> None:
            write_companions(folder, built.hf_config, tokenizer)

        checkpoints = open_checkpoints(world, self.run_dir, config, companions, console.warn)
        state = RunState(Ledger())
        if folder is not None:
            state = restore(folder, self.run_dir, engine, checkpoints, identity, self.consent, console, world)
        elif resume is not None:
            console.info("nothing to resume: no complete checkpoint yet, starting at step 1")
        self._leave_out(state)
        if state.step >= plan.total_steps and not plan.streamed:
            console.info(f"nothing left to train: step {state.step} of {plan.total_steps}")
        self._write_record(plan)
        for source, reasons in datasets.skipped.items():
            state.ledger.set_skipped(reasons, source)
        monitors = open_monitors(stack, world, self.run_dir, console, config, state.step)
        loader = stack.enter_context(step_loader(config, datasets, plan, world, state, console.warn))
        loop = Loop(
            config=config,
            plan=plan,
            engine=engine,
            schedule=_schedule(config, plan),
            state=state,
            identity=identity,
            held_out=held_out_loader(config, datasets, plan, world),
            samples=self._samples(engine, built, tokenizer),
            suspects=Suspects(
                self.run_dir.monitors,
                tokenizer,
                None if isinstance(loader, StreamLoader) else loader.sequence,
                console.warn,
                writes=world.is_main,
            ),
            checkpoints=checkpoints,
            monitors=monitors,
            status=self.status,
            stop=self.stop if world.size == 1 else AgreedStop(self.stop, world),
            device=world.device,
            flops_per_token=built.flops_per_token(config.data.max_seq_length),
            peak_flops=peak_flops(world.device, config.trainer.mixed_precision),
        )
        self.began = True
        stopped_by = loop.run(loader)
        for note in loader.stream.tally_notes(state.position) if isinstance(loader, StreamLoader) else ():
            console.info(note)
        if stopped_by in ("signal", "user"):
            self.status.update(state="stopped", stopped_by=stopped_by, step=state.step)
            console.ended(f"stopped by {stopped_by} after step {state.step}; continue with --resume")
        else:
            saved = (
                step_folder(checkpoints.root, state.step) if checkpoints.last_saved == state.step else None
            )
            self._export(engine, built, tokenizer, saved)
            self.status.update(state="completed", phase="done", stopped_by=stopped_by, step=state.step)
            console.ended(f"done: {state.step} steps, {state.tokens:,} tokens; model in {self.run_dir.model}")
        metrics = dict(state.metrics)
        if "loss/mean" in metrics:
            metrics["loss"] = metrics["loss/mean"]
        epoch = state.epochs(plan)
        return TrainState(
            global_step=state.step,
            epoch=epoch,
            tokens=state.tokens,
            metrics=metrics,
            run_dir=self.run_dir.root,
            stopped_by=stopped_by,
        )

    def _leave_out(self, state: RunState) -> None:
        """Record the rows of ``--skip-rows``, and say all that are left out from here on."""
        past = [
            part
            for part in self.request.skip_rows
            if part[1] <= state.next_row  # known already: another attempt repeats the words of the first
            and not any(start <= part[0] and part[1] <= stop for start, stop in state.skip_rows)
        ]
        if past:
            raise UsageError(
                f"rows {past[0][0]}:{past[0][1]} lie before row {state.next_row}, where the run goes on",
                where="--skip-rows",
                hint="resume an earlier checkpoint to leave them out",
            )
        state.skip_rows = merged((*state.skip_rows, *self.request.skip_rows))
        for start, stop in state.skip_rows:
            if stop > state.next_row:
                self.console.info(f"rows {start}:{stop} are left out ({stop - start} rows), as recorded")

    def _write_record(self, plan: Plan | None) -> None:
        """config.json and plan.json; those of an earlier attempt stand until a resume was accepted."""
        if not self.world.is_main:
            return
        write_json(self.run_dir.config, self.config.model_dump(mode="json"))
        if plan is not None:
            write_json(self.run_dir.plan, plan.to_dict())

    def _checkpoint(self, resume: str) -> Path | None:
        """The one that ``--resume`` means: found by rank 0, so that all read the same."""
        found = find_checkpoint(self.run_dir, resume, self.console.warn) if self.world.is_main else None
        told = self.world.tell("checkpoint", found and str(found), poll=self.stop.raise_if_requested)
        return Path(told) if told else None

    def _tokenizer(self) -> TextTokenizer:
        if self.request.loaded is not None:
            return TextTokenizer.from_transformers(self.request.loaded[1])
        source = self.config.model.tokenizer or resolve_model_dir(self.config.model.name)
        tokenizer = load_tokenizer(source, eos_token=self.config.data.eos_token)
        for note in tokenizer.notes:
            self.console.info(note)
        return tokenizer

    def _model(self, tokenizer: TextTokenizer, world: World) -> BuiltModel:
        model = self.config.model
        built = build_model(
            model.name if self.request.loaded is None else self.request.loaded[0],
            init=model.init,
            overrides=model.overrides,
            attention=model.attention,
            seed=self.config.trainer.seed,
            tokenizer_size=tokenizer.vocab_size,
            eos_id=tokenizer.eos_id,
            device=world.device,
            precision=self.config.trainer.mixed_precision,
        )
        for note in built.notes:
            self.console.info(note)
        for warning in check_row_length(built.hf_config, self.config.data.max_seq_length):
            self.console.warn(warning)
        return built

    def _datasets(self, tokenizer: TextTokenizer, built: BuiltModel) -> Datasets:
        self.status.update(phase="tokenizing")
        with self.world.main_first("data", self.stop.raise_if_requested):  # it tokenizes, all open
            datasets = open_datasets(
                self.config,
                tokenizer,
                vocab_size=built.hf_config.vocab_size,
                working=self.console.working,
                should_stop=lambda: self.stop.requested,
            )
        self.status.update(phase="starting")
        for note in datasets.notes:
            self.console.info(note)
        return datasets

    def _plan(self, datasets: Datasets, built: BuiltModel, world: World) -> Plan:
        plan = plan_for(
            self.config,
            built,
            world,
            num_rows=datasets.num_rows,
            num_targets=datasets.num_targets,
            num_eval_rows=datasets.num_held_out_rows,
            say=self.say,
        )
        self.status.note(total=plan.total_steps)
        warning = check_space(self.run_dir.root, plan) if world.is_main else ""
        if warning:
            self.console.warn(warning)
        return plan

    def _check_same(self, identity: dict[str, Any], plan: Plan) -> None:
        """Ranks that read different data, on machines with different disks, must not train together."""
        own = {"identity": identity, "rows": plan.total_rows, "steps": plan.total_steps}
        if own != self.world.tell("identity", own):
            raise DataError(
                f"rank {self.world.rank} does not see the data, model or settings that rank 0 sees",
                hint="do all machines read the same folders, in the same state?",
            )

    def _samples(self, engine: Engine, built: BuiltModel, tokenizer: TextTokenizer) -> Sampler | None:
        prompts = self.config.eval.sample_prompts
        if not prompts or not (self.world.is_main or engine.together):
            return None
        return Sampler(
            built.module,
            tokenizer,
            tuple(prompts),
            self.run_dir.monitors,
            self.console.info,
            around=engine.whole,
            writes=self.world.is_main,
        )

    def _export(
        self, engine: Engine, built: BuiltModel, tokenizer: TextTokenizer, saved: Path | None
    ) -> None:
        """From the checkpoint of this step, where ranks have shards only: nobody gathers them then."""
        self.status.update(phase="exporting")
        from_disk = self.world.tell("export", engine.together and saved is not None)
        weights = weights_of(saved) if from_disk and saved else engine.full_weights()
        if not self.world.is_main:
            return
        try:
            export_model(weights, built.hf_config, tokenizer, self.run_dir.model)
        except NoSpaceError as error:
            error.hint = "the last checkpoint is complete: free space and run `protolith export` on it"
            raise


def _check_ranks(config: TrainConfig, request: Request, world: World) -> None:
    wanted = request.num_ranks or config.trainer.num_gpus
    if wanted is not None and wanted != world.size:
        raise UsageError(
            f"{wanted} processes are asked for and this run has {world.size}",
            where="trainer.num_gpus",
            hint="start it with protolith pretrain, which starts one process per device, or with torchrun",
        )


def _schedule(config: TrainConfig, plan: Plan) -> Schedule:
    return Schedule(
        name=config.trainer.scheduler,
        peak=config.trainer.learning_rate,
        total_steps=plan.total_steps,
        warmup_steps=plan.warmup_steps,
        decay_steps=plan.decay_steps,
        min_ratio=config.trainer.min_lr_ratio,
    )
