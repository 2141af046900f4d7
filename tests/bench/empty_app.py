"""An empty FastAPI route on the server the API runs on: the yardstick for polls."""

import sys

import uvicorn
from fastapi import FastAPI

app = FastAPI()


@app.get("/empty")
async def empty() -> dict[str, str]:
    return {}


if __name__ == "__main__":
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="asyncio",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
