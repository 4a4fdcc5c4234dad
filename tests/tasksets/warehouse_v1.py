"""A verifiers v1 taskset with tools: one tool server per rollout, whose state determines the reward."""

import verifiers.v1 as vf
from pydantic import Field

STOCK = {"bolts": 12, "nuts": 7, "washers": 31}


class WarehouseData(vf.TaskData):
    part: str
    quantity: int


class WarehouseState(vf.State):
    taken: dict[str, int] = Field(default_factory=dict)


class Shelf(vf.Toolset[vf.ToolsetConfig, WarehouseState]):
    TOOL_PREFIX = "shelf"

    @vf.tool
    def count(self, part: str) -> str:
        """How many of a part there are."""
        return str(STOCK[part])

    @vf.tool
    def take(self, part: str, number: int) -> str:
        """Take some of a part from the shelf."""
        self.state.taken[part] = self.state.taken.get(part, 0) + number
        return f"{number} {part} taken"


class WarehouseTask(vf.Task[WarehouseData, WarehouseState, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Shelf(vf.ToolsetConfig())]

    @vf.reward
    async def delivered(self, trace: vf.Trace) -> float:
        return float(trace.state.taken == {self.data.part: self.data.quantity})

    @vf.metric
    async def tool_results(self, trace: vf.Trace) -> float:
        return float(len(trace.tool_messages))


class WarehouseTaskset(vf.Taskset[WarehouseTask, vf.TasksetConfig]):
    def load(self) -> list[WarehouseTask]:
        return [
            WarehouseTask(
                WarehouseData(prompt=f"Take half of the {part} from the shelf.", part=part, quantity=number // 2),
                self.config.task,
            )
            for part, number in STOCK.items()
        ]


__all__ = ["WarehouseTaskset"]

if __name__ == "__main__":
    Shelf.run()
