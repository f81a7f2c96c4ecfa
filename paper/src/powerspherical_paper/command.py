"""`powerspherical reproduce`: the options of the command. `running` does the work and is imported when it runs."""

from pathlib import Path
from typing import Annotated, Literal, get_args

import torch
from typer import Argument, Option, Typer

from powerspherical.cli.common import LARGEST_SEED, require_device, require_folder, wrong

Experiment = Literal["figure1", "properties", "stability", "efficiency", "vae"]
Choice = Literal[Experiment, "all"]
Data = Literal["digits", "mnist"]
OUT = Path("reproduction")


def add_to(app: Typer) -> None:
    """Add the command to the application."""

    @app.command()
    def reproduce(
        what: Annotated[Choice, Argument(help="The figure or table to make.")] = "all",
        out: Annotated[
            Path, Option(metavar="DIR", help="Folder for the results; created if it does not exist.")
        ] = OUT,
        seed: Annotated[
            int, Option(metavar="N", min=0, max=LARGEST_SEED, help="Seed of all random draws.")
        ] = 0,
        quick: Annotated[
            bool, Option("--quick", help="Run smaller experiments, which take minutes.")
        ] = False,
        # The name is explicit because some versions of typer take it from the metavar: --DEVICE.
        device: Annotated[
            str, Option("--device", metavar="DEVICE", help="Where to compute: cpu, cuda, cuda:1, …")
        ] = "cpu",
        data: Annotated[
            Data | None,
            Option(
                metavar="NAME",
                help=f"Only for vae. Images to train on: {', '.join(get_args(Data))}.",
                show_default="mnist; with --quick digits",
            ),
        ] = None,
        data_dir: Annotated[
            Path | None,
            Option(
                metavar="DIR",
                exists=True,
                file_okay=False,
                help="Only for vae. Folder with the image files.",
                show_default="POWERSPHERICAL_DATA if set; else download",
            ),
        ] = None,
        seeds: Annotated[
            int | None,
            Option(
                metavar="N",
                min=1,
                help="Only for vae. Train with N consecutive seeds, starting at --seed.",
                show_default="3; with --quick 1",
            ),
        ] = None,
        jobs: Annotated[
            int | None,
            Option(metavar="N", min=1, help="Only for vae. Run N trainings in parallel.", show_default="1"),
        ] = None,
        force: Annotated[
            bool, Option("--force", help="Replace existing results. Finished trainings are kept.")
        ] = False,
        threads: Annotated[
            int,
            Option(
                metavar="N",
                min=1,
                help="CPU threads, shared by all --jobs. More threads do not speed up small models.",
            ),
        ] = 1,
    ) -> None:
        """Reproduce the paper's figures and tables.

        Writes the results and a report on them into the folder --out. The last line of the output is the path of the
        report. The exit status is 1 if a check fails; timings are not checked.

        Existing results are replaced only with --force. After an interruption or an error, the same command continues:
        "all" skips results that were made with the same settings, and trainings resume at their last epoch. To repeat
        trainings too, delete the folder vae in --out.

        Example: powerspherical reproduce all --quick
        """
        from powerspherical_paper import running

        settings = {"data": data, "seeds": seeds}
        for name, value in {**settings, "data_dir": data_dir, "jobs": jobs}.items():
            if value is not None and what not in ("vae", "all"):
                raise wrong(f"--{name.replace('_', '-')}", f"{what} does not take this option, only vae does")
        require_device(device)
        names = get_args(Experiment) if what == "all" else (what,)
        tasks = [running.task(name, out, seed, quick, device, settings) for name in names]
        if not force:
            tasks = running.new(tasks, out, skip=what == "all")
        require_folder(out)
        torch.set_num_threads(threads)
        running.run_each(tasks, out, data_dir, jobs or 1)
