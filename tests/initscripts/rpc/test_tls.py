"""Whom the engine's connections trust."""

from __future__ import annotations

from pathlib import Path

import certifi
import pytest

from sockd_initscripts.rpc.tls import client_context


def test_a_host_without_certificates_has_those_of_certifi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    assert client_context().cert_store_stats()["x509_ca"] > 50


def test_a_hosts_own_certificates_are_all_that_is_trusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    certificates = Path(certifi.where()).read_text()
    end = "-----END CERTIFICATE-----\n"
    (tmp_path / "one").write_text(certificates[: certificates.index(end) + len(end)])
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "one"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    assert client_context().cert_store_stats()["x509_ca"] == 1
