"""Input of a simulation: popular PyPI packages, their real dependencies, and what importing them costs.

Order is popularity: packages that application code asks for by name, most popular first, after SOCK's study of GitHub
(section 2.3; django, requests, flask, numpy and their like lead there) and today's use. The order among neighbours is a
guess; the two lists below are interleaved.

Costs are each distribution's own (its dependencies not included), on Python 3.11 with compiled bytecode. `measured`:
the sum over the closure is a measured import time and growth of resident memory on a machine with 2
cores; how it divides among the dependencies is estimated. `estimated`: from a few runs of
`python -c import` there, or from the size of the package; right to a factor of two.
"""

from __future__ import annotations

from itertools import chain, zip_longest
from typing import Literal, NamedTuple


class Package(NamedTuple):
    """One distribution."""

    name: str
    depends: tuple[str, ...]
    own_ms: float
    own_mb: float
    origin: Literal["measured", "estimated"]


def _table(text: str, origin: Literal["measured", "estimated"]) -> list[Package]:
    """Lines of: name own-ms own-MB [dependencies]."""
    rows = (line.split() for line in text.strip().splitlines())
    return [Package(name, tuple(depends), float(ms), float(mb), origin) for name, ms, mb, *depends in rows]


_MEASURED = _table(
    """
requests            28   9.9 urllib3 idna certifi charset-normalizer
numpy               53  16
django              30  10.5 asgiref sqlparse
flask               10   1.5 jinja2 werkzeug itsdangerous click blinker
pandas             121  39.5 numpy python-dateutil pytz tzdata
boto3               12   3.7 botocore jmespath s3transfer
pyyaml              13   3
beautifulsoup4      50  11   soupsieve typing-extensions
pillow              16   5
sqlalchemy         130  26.2 greenlet typing-extensions
matplotlib         260  28.4 numpy contourpy cycler fonttools kiwisolver packaging pillow pyparsing python-dateutil
scipy              464  73   numpy
redis               80  22
psycopg2-binary     21  12
jinja2              32  10.8 markupsafe
lxml                15   7
scikit-learn       134  36.5 numpy scipy joblib threadpoolctl
pytest              70  17.8 iniconfig packaging pluggy pygments
pydantic            13   3.5 annotated-types pydantic-core typing-extensions typing-inspection
fastapi            133  13.4 pydantic starlette
httpx             27.5   8.9 anyio certifi httpcore idna
aiohttp            152  20.4 aiohappyeyeballs aiosignal attrs frozenlist multidict propcache yarl
gevent              20   5.4 greenlet zope-interface
polars             107  37
""",
    "measured",
)

_ESTIMATED = _table(
    """
python-dateutil      6   1.2 six
six                  1   0.3
simplejson           5   1
click                6   1.5
gunicorn            35   8   packaging
celery              75  12   amqp billiard click kombu python-dateutil vine
pymongo             60  12   dnspython
tqdm                12   2
cryptography        15   3.2 cffi
docopt               2   0.3
selenium            45   9   certifi trio typing-extensions urllib3 websocket-client
tornado             45   9
pyjwt                8   1.5
python-dotenv       12   2
rich                26   4.5 markdown-it-py pygments
networkx            95  18
sympy              170  30   mpmath
paramiko            50   9   bcrypt cryptography pynacl
nltk               160  28   click joblib regex tqdm
google-auth         30   6   cachetools pyasn1-modules rsa
protobuf            18   4
grpcio              25   8   typing-extensions
opencv-python       60  30   numpy
pyarrow             70  35
openpyxl            60  12   et-xmlfile
tabulate             4   0.7
psutil               8   2
websocket-client    15   3
markdown            20   3
jsonschema          40   6   attrs jsonschema-specifications referencing rpds-py
marshmallow         25   4   packaging
djangorestframework 25   5   django
uvicorn             45   8   click h11
openai             180  26   anyio distro httpx jiter pydantic sniffio tqdm typing-extensions
tiktoken            20   6   regex requests
stripe              90  18   requests typing-extensions
elasticsearch       60  12   elastic-transport python-dateutil typing-extensions
kubernetes         150  35   certifi google-auth python-dateutil pyyaml requests six urllib3 websocket-client
xlrd                 6   1
pycryptodome         9   2
""",
    "estimated",
)

_DEPENDENCIES = _table(
    """
aiohappyeyeballs     1   0.2
aiosignal            1   0.1 frozenlist
amqp                 8   1.5 vine
annotated-types      2   0.3
anyio               12   3   idna sniffio
asgiref              6   1.5
attrs               10   2
bcrypt               2   0.5
billiard            12   2
blinker              3   0.5
botocore            45  12   jmespath python-dateutil urllib3
cachetools           2   0.4
certifi            0.5   0.1
cffi                 3   0.8
charset-normalizer   6   1.5
contourpy            3   0.6 numpy
cycler               1   0.1
distro               2   0.3
dnspython           10   2
elastic-transport   12   2   certifi urllib3
et-xmlfile           1   0.2
fonttools            5   1
frozenlist           1   0.2
greenlet             1   0.3
h11                  4   1
httpcore            14   3.5 certifi h11
idna                 2   0.5
iniconfig            1   0.1
itsdangerous         3   0.5
jiter                2   0.8
jmespath             4   0.8
joblib              35   6
jsonschema-specifications 4 0.8 referencing
kiwisolver           1   0.3
kombu               20   4   amqp vine
markdown-it-py      12   2   mdurl
markupsafe           1   0.2
mdurl                1   0.1
mpmath              25   5
multidict            2   0.4
outcome              2   0.3 attrs
packaging            4   0.6
pluggy               5   1
propcache            1   0.2
pyasn1               6   1
pyasn1-modules       8   1.5 pyasn1
pydantic-core        4   2.5 typing-extensions
pygments             3   0.5
pynacl               4   1   cffi
pyparsing           14   2.5
pytz                 4   1
referencing          8   1.5 attrs rpds-py
regex               10   2
rpds-py              1   0.5
rsa                  4   0.7 pyasn1
s3transfer           5   1   botocore
sniffio            0.5   0.1
sortedcontainers     3   0.5
soupsieve            8   1.5
sqlparse             3   1
starlette           45   6   anyio
threadpoolctl        3   0.5
trio                40   8   attrs idna outcome sniffio sortedcontainers
typing-extensions    8   1.5
typing-inspection    1   0.2 typing-extensions
tzdata             0.1   0.1
urllib3             30   7
vine                 2   0.3
werkzeug            32   7   markupsafe
yarl                 5   1   idna multidict propcache
zope-interface       6   1.2
""",
    "estimated",
)

POPULAR: tuple[str, ...] = tuple(
    package.name for package in chain.from_iterable(zip_longest(_MEASURED, _ESTIMATED)) if package is not None
)
"""What a function asks for by name, most popular first."""

PACKAGES: dict[str, Package] = {package.name: package for package in _MEASURED + _ESTIMATED + _DEPENDENCIES}

LOOKS_FOR: dict[str, tuple[str, ...]] = {
    "beautifulsoup4": ("lxml",),
    "elastic-transport": ("aiohttp", "simplejson"),
    "elasticsearch": ("pyarrow",),
    "joblib": ("psutil",),
    "nltk": ("scikit-learn", "scipy"),
    "openai": ("aiohttp",),
    "openpyxl": ("lxml",),
    "pandas": ("pyarrow",),
    "polars": ("gevent", "pandas", "pyarrow"),
    "pyjwt": ("bcrypt",),
    "redis": ("psutil",),
    "requests": ("simplejson",),
    "scikit-learn": ("pandas",),
}
"""Packages of the table whose modules the imports of another look for without requiring them. Measured: names that reached a
last finder on `sys.meta_path`, or versions that were asked for, when each of POPULAR was imported beside its closure alone."""

_FILTERS = ("warnings.filters",)
WRITES: dict[str, tuple[str, ...]] = dict.fromkeys(
    (
        *(
            "numpy",
            "pandas",
            "scipy",
            "scikit-learn",
            "sympy",
            "matplotlib",
            "opencv-python",
            "pyarrow",
            "polars",
            "nltk",
        ),
        *("requests", "boto3", "stripe", "elasticsearch", "kubernetes", "openpyxl", "six"),
    ),
    _FILTERS,
)
"""What importing a package changes outside of its own modules, so that another import could see it: filters of warnings, for
most. Measured by the recorder of top levels (`sockd_zygote.top_levels.top_level`) when each of POPULAR was imported alone."""

MEASURED_MS: dict[str, float] = {
    "numpy": 53,
    "pandas": 185,
    "requests": 67,
    "flask": 87,
    "jinja2": 33,
    "django": 39,
    "matplotlib": 364,
    "sqlalchemy": 139,
    "boto3": 103,
    "redis": 80,
    "scikit-learn": 689,
    "fastapi": 221,
    "httpx": 60,
    "aiohttp": 175,
    "polars": 107,
    "pillow": 16,
    "pydantic": 28,
    "beautifulsoup4": 66,
    "pytest": 83,
}
"""Import times of whole closures as measured (limits.md section 7): what the table's rows must add up to."""


def closure(name: str) -> frozenset[str]:
    """A package and everything that it depends on."""
    found: set[str] = set()
    pending = [name]
    while pending:
        package = pending.pop()
        if package not in found:
            found.add(package)
            pending.extend(PACKAGES[package].depends)
    return frozenset(found)
