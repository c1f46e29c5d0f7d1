"""What an object store or the way to it does wrong, as the kind of failure it is for the user."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from dagpack_cli.errors import DagpackError, DiskError, PermissionDeniedError, shorten

__all__ = ["StoreFault", "speaking_to"]

StoreFault = type[DagpackError]
_DENIED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT_TOKEN|MISSING_AUTHENTICATION|"
    r"EXPIRED_TOKEN|ExpiredToken|InvalidToken|PERMISSION_DENIED|UNAUTHENTICATED|HTTP status 40[13]\b|"
    r"Could not create an? OAuth2|could not find default credentials|NoCredentials|Forbidden",
    re.IGNORECASE,
)
# Google's store answers alike for a bucket and an object that are not there: of objects, nobody comes here.
_NO_BUCKET = re.compile(
    r"NO_SUCH_BUCKET|NoSuchBucket|bucket .{0,80}(not found|does not exist)|google::cloud::Status\(NOT_FOUND",
    re.IGNORECASE,
)
_MOVED = re.compile(r"PermanentRedirect|HTTP status 301|AuthorizationHeaderMalformed|IllegalLocationConstraint")
_BUSY = re.compile(r"SLOW_DOWN|THROTTLING|SERVICE_UNAVAILABLE|HTTP status (503|429)|RESOURCE_EXHAUSTED", re.IGNORECASE)
_UNREACHABLE = re.compile(
    r"NETWORK_CONNECTION|curlCode|timeout|UNAVAILABLE|Could ?n.t (connect|resolve)", re.IGNORECASE
)


@contextmanager
def speaking_to(where: str, missing: StoreFault) -> Iterator[None]:
    """Do something with a store; what it or the network does wrong is raised as an error of ours.

    Nothing else is to be done in the body: a local disk that is full would be taken for the store's fault.

    Args:
        where: the URI it is about.
        missing: the kind of error where the bucket does not exist: that of an input or of an output.

    Raises:
        DagpackError: `PermissionDeniedError`, ``missing``, or `DiskError` for all that may pass.
    """
    try:
        yield
    except DagpackError:
        raise
    except Exception as error:  # pyarrow raises its own kinds, fsspec those of a library for each store
        raise _kind_of(error, where, missing) from error


def _kind_of(error: Exception, where: str, missing: StoreFault) -> DagpackError:
    text = str(error)
    if isinstance(error, PermissionError) or _DENIED.search(text):
        hint = (
            "check the credentials in the environment (AWS_PROFILE, AWS_ACCESS_KEY_ID; GOOGLE_APPLICATION_CREDENTIALS)"
        )
        hint += " and what they allow, or add ?anonymous=true for a public bucket"
        return PermissionDeniedError(where, "the store refuses access", "credentials that allow it", hint=hint)
    if _NO_BUCKET.search(text):
        return missing(where, "there is no such bucket", "a bucket that exists", hint="create it, or correct the URI")
    if _MOVED.search(text):
        hint = "name the bucket's region: AWS_REGION in the environment, or ?region=NAME"
        return DiskError(where, "the bucket is in another region", hint=hint)
    if _BUSY.search(text):
        found = "the store asked to slow down, and did so again after every pause"
        return DiskError(where, found, hint="run the same command again later, with fewer --workers")
    if _UNREACHABLE.search(text):
        hint = "check the network and the endpoint (of s3, AWS_ENDPOINT_URL), and run the same command again"
        return DiskError(where, f"the store cannot be reached: {_reason(text)}", hint=hint)
    return DiskError(where, f"the store failed: {_reason(text)}", hint="run the same command again")


def _reason(text: str) -> str:
    """Return the part of a library's message that says why, on one line, without what follows it."""
    reason = re.search(r"curlCode: \d+, ([^;]+)|CURL error \[\d+\]=(.+?) error_info", text)
    return shorten(reason[1] or reason[2] if reason else " ".join(text.split()), 200).strip('"')
