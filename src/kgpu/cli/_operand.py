"""What commands about an operand's pods have in common: which operand, on which node, in which cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kgpu.cli import _complete
from kgpu.cli._common import output_option

F = TypeVar("F", bound=Callable[..., Any])


def which_pods(function: F) -> F:
    """``OPERAND`` and ``--node``; parameters ``operand`` and ``node``."""
    node = click.option(
        "--node", default="", metavar="NODE", help="Only the pod on this node.", shell_complete=_complete.nodes
    )
    return click.argument("operand", metavar="OPERAND", shell_complete=_complete.workloads)(node(function))


def which_cluster(function: F) -> F:
    """``-n``, ``--kubeconfig`` and ``-o``; parameters ``namespace``, ``kubeconfig`` and ``output``."""
    namespace = click.option(
        "-n", "--namespace", default="", metavar="NS", help="Where the pods are. Default: the operator's.",
        shell_complete=_complete.namespaces,
    )  # fmt: skip
    kubeconfig = click.option(
        "--kubeconfig", default="", envvar="KUBECONFIG", metavar="FILE", help="How to reach the API server."
    )
    return namespace(kubeconfig(output_option()(function)))
