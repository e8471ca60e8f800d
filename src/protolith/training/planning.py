"""A plan without a run: the parts of ``pretrain`` that only read.

Text that is not tokenized yet is counted exactly when it is small and estimated from a sample when it is
not, and the report says which.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from protolith.config.availability import check_available
from protolith.config.checks import Say, same_name
from protolith.config.load import LoadedConfig
from protolith.config.mixture import sources_of
from protolith.config.plan import ModelShape, Plan, make_plan
from protolith.config.schema import TrainConfig
from protolith.data.files import find_files
from protolith.data.stream_estimate import estimate_rows
from protolith.data.streams import TextStream
from protolith.data.text import TEXT_SUFFIXES
from protolith.data.tokenizer import TextTokenizer, load_tokenizer
from protolith.distributed.world import World, device_name, ranks_wanted, single_process
from protolith.formats.rundir import RunDir, read_metrics
from protolith.model.build import BuiltModel, build_model, resolve_model_dir
from protolith.model.flops import peak_flops
from protolith.model.positions import check_row_length
from protolith.training import banner, compiling
from protolith.training.datasets import Datasets, open_datasets
from protolith.training.optim import groups_of
from protolith.training.output_folder import foresee
from protolith.training.passes import mixture_lines
from protolith.training.space import check_memory, check_space
from protolith.units import format_duration

_EXACT_BYTES = 64_000_000
_GUESSED_MFU = 0.4


@dataclass
class PlanReport:
    """A plan, and the lines that tell it to a person."""

    plan: Plan
    lines: list[str]
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def plan_run(given: TrainConfig | LoadedConfig, num_ranks: int | None = None) -> PlanReport:
    """Plan a run as ``pretrain`` would, touching no output folder.

    Args:
        num_ranks: processes it would be started with; None: as ``pretrain`` decides itself.

    Raises:
        ProtolithError: whatever would stop the run before its first step.
    """
    check_available(given)
    config = given.config if isinstance(given, LoadedConfig) else given
    notes: list[str] = []
    warnings = foresee(RunDir(Path(config.output.dir).expanduser()))
    source = config.model.tokenizer or resolve_model_dir(config.model.name)
    tokenizer = load_tokenizer(source, eos_token=config.data.eos_token)
    notes += tokenizer.notes
    world = replace(single_process(), size=ranks_wanted(config, num_ranks))
    built = build_model(
        config.model.name,
        overrides=config.model.overrides,
        attention=config.model.attention,
        eos_id=tokenizer.eos_id,
        tokenizer_size=tokenizer.vocab_size,
        device=world.device,
        precision=config.trainer.mixed_precision,
        meta=True,
    )
    notes += built.notes
    warnings += check_row_length(built.hf_config, config.data.max_seq_length)
    sizes = _sizes(config, tokenizer, built, notes, warnings)
    plan = plan_for(
        config,
        built,
        world,
        num_rows=sizes.num_rows,
        num_targets=sizes.num_targets,
        num_eval_rows=sizes.num_eval_rows,
        say=given.say if isinstance(given, LoadedConfig) else same_name,
    )
    warnings += plan.warnings
    folder = Path(config.output.dir).expanduser().absolute()
    while not folder.exists():
        folder = folder.parent
    warnings += filter(None, [check_space(folder, plan), check_memory(world.device, plan)])
    flops = built.flops_per_token(config.data.max_seq_length) * plan.total_tokens
    _, why = compiling.decide(config.model.compile, planned_flops=flops, device=world.device)
    lines = banner.lines(
        config, plan, built, groups_of(config.trainer.optimizer, built.module), device_name(world.device), why
    )
    if sizes.datasets is not None:
        about_sources, of_sources = mixture_lines(sizes.datasets, plan)
        lines += about_sources
        warnings += of_sources
    lines.append(_time_line(config, plan, flops, peak_flops(world.device, config.trainer.mixed_precision)))
    return PlanReport(plan, lines, notes, warnings)


def plan_for(
    config: TrainConfig,
    built: BuiltModel,
    world: World,
    *,
    num_rows: int,
    num_targets: int,
    num_eval_rows: int,
    say: Say = same_name,
) -> Plan:
    """The plan of this model on this data: rows, targets and held-out rows are those of one epoch."""
    hf_config = built.hf_config
    return make_plan(
        config,
        world_size=world.size,
        num_rows=num_rows,
        num_targets=num_targets,
        num_parameters=built.num_parameters,
        num_eval_rows=num_eval_rows,
        shape=ModelShape(
            hidden_size=int(getattr(hf_config, "hidden_size", 0) or 0),
            num_layers=int(getattr(hf_config, "num_hidden_layers", 0) or 0),
            intermediate_size=int(getattr(hf_config, "intermediate_size", 0) or 0),
            vocab_size=hf_config.vocab_size,
        ),
        streamed=config.data.streaming and config.data.format == "text",
        say=say,
    )


def _time_line(config: TrainConfig, plan: Plan, flops: float, peak: float | None) -> str:
    """The expected time where it can be known: from a run in the same folder, or from the device's peak."""
    values = read_metrics(RunDir(Path(config.output.dir).expanduser()).metrics).values()
    speeds = [line["perf/throughput"] for line in values if "perf/throughput" in line]
    if speeds:
        speed = sorted(speeds)[len(speeds) // 2]
        return (
            f"time: about {format_duration(plan.total_tokens / speed)} at {speed:,.0f} tokens/s, "
            f"the median of the run in {config.output.dir}"
        )
    if peak:
        return (
            f"time: about {format_duration(flops / peak / _GUESSED_MFU)} at {_GUESSED_MFU:.0%} MFU (a guess)"
        )
    return f"time: not known before the first steps on this device ({flops:.2g} FLOPs)"


@dataclass(frozen=True)
class _Sizes:
    """Of one epoch, exact (then with the opened data) or estimated."""

    num_rows: int
    num_targets: int
    num_eval_rows: int
    datasets: Datasets | None = None


def _sizes(
    config: TrainConfig, tokenizer: TextTokenizer, built: BuiltModel, notes: list[str], warnings: list[str]
) -> _Sizes:
    data = config.data
    if data.format == "text" and not data.streaming:
        paths = [path for spec in sources_of(data) if spec.is_used for path in spec.paths]
        found = find_files(paths, suffixes=TEXT_SUFFIXES, what="text")
        size = sum(file.size_bytes for file in found.files)
        if size > _EXACT_BYTES:
            stream = TextStream(
                found.files,
                tokenizer,
                seq_len=data.max_seq_length,
                packing=data.packing is not False,
                shuffle=False,
                text_field=data.text_field,
            )
            estimate = estimate_rows(stream)
            notes.append(
                f"tokens are estimated from a sample of {estimate.sample_bytes:,} bytes; "
                "the run itself counts them"
            )
            held_out = round(estimate.num_rows * data.eval_split)
            targets = max(1, round(estimate.num_targets * (1 - data.eval_split)))
            return _Sizes(max(1, estimate.num_rows - held_out), targets, held_out)
    datasets = open_datasets(
        config,
        tokenizer,
        vocab_size=built.hf_config.vocab_size,
        working=lambda *_: None,
        should_stop=lambda: False,
    )
    notes += datasets.notes
    warnings += datasets.warnings
    return _Sizes(datasets.num_rows, datasets.num_targets, datasets.num_held_out_rows, datasets)
