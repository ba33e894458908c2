"""What type checkers see of `sockd`: its names, which `__init__.py` imports when they are asked for."""

from sockd.client.python import DeployFailed as DeployFailed
from sockd.client.python import NameTaken as NameTaken
from sockd.client.python import NoWorker as NoWorker
from sockd.client.python import OtherCode as OtherCode
from sockd.client.python import RemoteError as RemoteError
from sockd.client.python import RemoteFunction as RemoteFunction
from sockd.client.python import UnverifiedAnswer as UnverifiedAnswer
from sockd.client.python import function as function

__all__: list[str]
__version__: str
