"""Allows engines to serve a model, under a name that the site shows."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from runner.arms import DTYPES
from webapp.core.errors import Refusal
from webapp.fleet.models import TargetModel
from webapp.fleet.services import ModelDetails, register_model


class Command(BaseCommand):
    help = "Add a model that experiments may use, or change the one of that name."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="the name that people choose from")
        parser.add_argument("--engine", choices=TargetModel.Engine.values, default="vllm")
        parser.add_argument("--location", required=True, help="a local folder or a Hugging Face id")
        parser.add_argument("--revision", default="", help="commit of the Hugging Face repository")
        parser.add_argument("--dtype", choices=DTYPES, default="auto")
        parser.add_argument("--max-model-len", type=int, help="longest context in tokens")
        parser.add_argument("--enforce-eager", action="store_true")
        parser.add_argument(
            "--draft",
            action="append",
            default=[],
            metavar="NAME=LOCATION",
            help="a smaller model with the same vocabulary; may be repeated",
        )
        parser.add_argument("--notice-file", type=Path, help="terms that come with the weights")
        parser.add_argument(
            "--simulator", type=Path, help="JSON file with the simulator's behaviour by method"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        details = ModelDetails(
            engine=options["engine"],
            location=options["location"],
            dtype=options["dtype"],
            revision=options["revision"],
            max_model_len=options["max_model_len"],
            enforce_eager=options["enforce_eager"],
            drafts=_drafts(options["draft"]),
            simulator=_behaviour(options["simulator"]),
            notice=_text(options["notice_file"]),
        )
        try:
            model = register_model(options["name"], details)
        except Refusal as refusal:
            raise CommandError(refusal.sentence) from None
        self.stdout.write(f"{model.name} is registered ({model.engine}, {model.location}).")


def _drafts(given: list[str]) -> dict[str, str]:
    drafts = {}
    for item in given:
        name, equals, location = item.partition("=")
        if not (name and equals and location):
            raise CommandError(f"--draft {item}: write it as NAME=LOCATION.")
        drafts[name] = location
    return drafts


def _text(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read ({type(error).__name__}).") from None


def _behaviour(path: Path | None) -> dict[str, Any]:
    text = _text(path)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise CommandError(f"{path} is not JSON: line {error.lineno}.") from None
    if not isinstance(found, dict):
        raise CommandError(f"{path} must hold an object of behaviours by method.")
    return found
