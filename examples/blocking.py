"""Blocking API: use an App from threads, web workers, or Spark's foreachBatch."""

from warren.sdk import App, Queue, Request


class Double(Request[int], queue="doubles"):
    number: int


app = App()
app.declare(Queue("notes"))


@app.handle(Double)
async def double(request: Double) -> int:
    return request.number * 2


if __name__ == "__main__":
    with app.sync as sync:  # the App runs on an event loop in its own thread
        sync.publish("remember the milk", key="notes")
        print("answered:", sync.call(Double(number=21)))
        message = sync.get("notes", timeout=5)
        if message is not None:
            with message:  # acknowledges at the end of the block
                print("noted:", message.read(str))
