"""What the commands that look at a running server share: their options, and the server as a target.

Knows how a user names a server and its secrets. Does not know what a command asks of it.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager

import urllib3

from conformance.access import check_certificates, headers_of
from conformance.dialect import DialectError
from conformance.permission import permitted
from conformance.target import Target, TargetError, TargetOptions


class Refused(Exception):
    """Wrong usage, or no server to look at; `status` is the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The URL, and how to get at what is behind it."""
    parser.add_argument("url", metavar="URL", help="base URL, such as http://127.0.0.1:8000")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    parser.add_argument("--model", metavar="NAME", help="the model to ask for (default: the first it lists)")
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="HEADER=VARIABLE,...",
        help="send each header with what its variable holds; a list with commas, or several times",
    )
    parser.add_argument(
        "--allow",
        type=_permissions,
        default=frozenset(),
        metavar="LIST",
        help="what the server, which others may use, must bear, as in a run: with reset its cache is emptied "
        "once, and requests that a test build holds are let go, to see whether that works; churn and "
        "disconnect change nothing here",
    )
    parser.add_argument(
        "--margin",
        type=_gap,
        metavar="GAP",
        help="logprob gap of a token's two best above which it counts as decided, as in a run",
    )
    parser.add_argument("--chunk", type=_tokens, metavar="N", help="tokens of one prefill chunk, as in a run")
    parser.add_argument("--cacert", metavar="FILE", help="trust the certificates in FILE")
    parser.add_argument("--insecure", action="store_true", help="do not check the certificate")
    parser.add_argument(
        "--request-timeout", type=_seconds, default=300.0, metavar="S", help="for one request (300)"
    )


def _seconds(given: str) -> float:
    return _positive(given, "seconds")


def _gap(given: str) -> float:
    return _positive(given, "a number")


def _tokens(given: str) -> int:
    if not given.isdecimal() or int(given) < 1:
        raise argparse.ArgumentTypeError(f"{given}: expected a whole number from 1 on")
    return int(given)


def _positive(given: str, what: str) -> float:
    try:
        number = float(given)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{given}: expected {what} above 0")
    return number


def _permissions(given: str) -> frozenset[str]:
    try:
        return permitted(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[Target]:
    """The probed server. Refused when it cannot be had; the key is that of CONFORMANCE_API_KEY."""
    options = _options(args)
    if options.verify is False:
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    try:
        target = Target(args.url, options)
    except (TargetError, DialectError) as error:
        raise Refused(str(error), 1) from None
    try:
        yield target
    finally:
        target.close()


def _options(args: argparse.Namespace) -> TargetOptions:
    try:
        if args.cacert:
            check_certificates(args.cacert)
        pairs = [pair.strip() for given in args.header for pair in given.split(",")]
        extra = headers_of(pairs, os.environ)
    except ValueError as error:
        raise Refused(str(error), 2) from None
    return TargetOptions(
        how="endpoint",
        url=args.url,
        timeout=args.request_timeout,
        model=args.model,
        allow=args.allow,
        margin=args.margin,
        chunk=args.chunk,
        extra=extra,
        verify=False if args.insecure else args.cacert or True,
    )
