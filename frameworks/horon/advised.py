"""What horonrun --advise runs on each rank: python -m horon.advised BYTES SECONDS."""

import sys

import horon


def main() -> None:
    horon.init()
    advice = horon.advise(float(sys.argv[1]), float(sys.argv[2]))
    if horon.rank() == 0:
        print(advice, flush=True)
    horon.shutdown()


if __name__ == "__main__":
    main()
