// Repeat actions while a page is shown.
/** Call `act` every so many milliseconds until `signal`, but not while the page is hidden; failed calls are repeated. */
export function every(milliseconds, act, signal) {
  const timer = setInterval(async () => {
    if (document.hidden) return;
    try {
      await act();
    } catch (error) {
      if (!signal.aborted) console.debug(error);
    }
  }, milliseconds);
  signal.addEventListener("abort", () => clearInterval(timer));
}

/** Call `ask` until what it answers has been read whole, showing how far it is. */
export async function whole(ask, show, signal) {
  for (;;) {
    const found = await ask();
    if (signal.aborted) return found;
    show(found);
    if (found.progress?.done !== false) return found;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}
