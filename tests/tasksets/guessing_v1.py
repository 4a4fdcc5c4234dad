"""A verifiers v1 taskset with a custom environment that acts as the user of a guessing game."""

import verifiers.v1 as vf


class GuessingData(vf.TaskData):
    secret: int


class GuessingTask(vf.Task[GuessingData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def quickness(self, trace: vf.Trace) -> float:
        return 1.0 / trace.num_turns if trace.last_reply == str(self.data.secret) else 0.0


class GuessingEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, max_turns=7)


class GuessingEnv(vf.Env[GuessingEnvConfig]):
    async def run(self, task, agents):
        guesses = 0
        async with agents.player.interaction(task) as interaction:
            turn = await interaction.turn()
            while not turn.terminated:
                guesses += 1
                guess = int(turn.last_reply) if turn.last_reply.isdigit() else -1
                if guess == task.data.secret:
                    break
                turn = await interaction.turn("Higher." if guess < task.data.secret else "Lower.")
        interaction.trace.record_metric("guesses", guesses)


class GuessingTaskset(vf.Taskset[GuessingTask, vf.TasksetConfig]):
    def load(self):
        for secret in (3, 11, 6):
            yield GuessingTask(GuessingData(prompt="Guess a number of 0 to 15.", secret=secret), self.config.task)


__all__ = ["GuessingEnv", "GuessingTaskset"]
