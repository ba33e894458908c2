"""What type checkers see of `sockd`: its names, which `__init__.py` imports when they are asked for."""

from sockd.remote import DeployFailed as DeployFailed
from sockd.remote import NameTaken as NameTaken
from sockd.remote import NoWorker as NoWorker
from sockd.remote import OtherCode as OtherCode
from sockd.remote import RemoteError as RemoteError
from sockd.remote import RemoteFunction as RemoteFunction
from sockd.remote import UnverifiedAnswer as UnverifiedAnswer
from sockd.remote import function as function

__all__: list[str]
__version__: str
