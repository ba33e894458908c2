"""Reads a picture from S3, makes it 128 pixels wide or high, and writes that back under thumbnails/."""

import io

import boto3
from PIL import Image

SIDE = 128

s3 = boto3.client("s3")  # where and as whom the function's environment says


def handler(event, context):
    original = s3.get_object(Bucket=event["bucket"], Key=event["key"])["Body"].read()
    picture = Image.open(io.BytesIO(original))
    size_before = picture.size
    picture.thumbnail((SIDE, SIDE))
    small = io.BytesIO()
    picture.save(small, "JPEG", quality=85)
    key = f"thumbnails/{event['key']}"
    s3.put_object(Bucket=event["bucket"], Key=key, Body=small.getvalue(), ContentType="image/jpeg")
    return {"key": key, "before": size_before, "after": picture.size, "bytes": small.tell()}
