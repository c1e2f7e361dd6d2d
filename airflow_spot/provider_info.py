"""What Airflow asks a provider about itself. Imported by every Airflow process at its start, so it imports nothing."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata, as ``airflow/provider_info.schema.json`` wants it."""
    return {
        "package-name": "airflow-provider-spot",
        "name": "Spot training",
        "description": "Training on AWS Batch at spot prices: no work lost to reclaims, deadlines kept.",
        "integrations": [
            {
                "integration-name": "Spot training on AWS Batch",
                "external-doc-url": "https://docs.aws.amazon.com/batch/",
                "tags": ["aws"],
            }
        ],
        "operators": [_modules("airflow_spot.operators.training")],
        "sensors": [_modules("airflow_spot.sensors.deadline")],
        "triggers": [_modules("airflow_spot.triggers.training", "airflow_spot.triggers.deadline")],
        "extra-links": [
            "airflow_spot.links.training.TrainingRunLink",
            "airflow_spot.links.training.BatchJobLink",
        ],
        "plugins": [{"name": "spot", "plugin-class": "airflow_spot.plugin.SpotPlugin"}],
        "config": {
            "airflow_spot": {
                "description": "Settings of airflow-provider-spot.",
                "options": {
                    "run_root": _option(
                        "Where run directories lie, unless the operator's ``run_root`` says otherwise.",
                        default=None,
                        example="s3://my-bucket/training",
                    ),
                    "heartbeat_interval": _option(
                        "Seconds between two heartbeats of a training container; also the longest time in which it "
                        "learns that it is to stop or to move.",
                        default="60",
                    ),
                    "orphan_after": _option(
                        "How long a container trains on while nobody in Airflow waits for it: a duration such as 6h.",
                        default="6h",
                    ),
                    "deployment": _option(
                        "This Airflow's name as an owner of training runs; it has to differ between deployments that "
                        "share a run root. Empty: ``[api] base_url``.",
                        default="",
                        example="production",
                    ),
                    "kms_key": _option(
                        "KMS key that encrypts what is written to run directories. Empty: as the bucket says.",
                        default="",
                        example="alias/training",
                    ),
                },
            }
        },
    }


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": "Spot training on AWS Batch", "python-modules": [*names]}


def _option(description: str, *, default: str | None, example: str | None = None) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": "0.1.0",
        "type": "string",
        "example": example,
        "default": default,
    }
