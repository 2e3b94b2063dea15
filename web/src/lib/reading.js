/* A component's view of one route, of this shape: read at once, again every so often while somebody looks, and when
 * `when` changes. Returns {answer, error, again}. */
import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "./api.js";

export function useReading(path, as, everyMs = 0, when = null) {
  const [found, setFound] = useState({ path });
  const again = useRef(() => {});

  useEffect(() => {
    let over = false;
    const read = () =>
      get(path, as).then(
        (answer) => over || setFound({ path, answer, error: null }),
        (error) =>
          over || setFound((before) => ({ path, answer: before.path === path ? before.answer : undefined, error })),
      );
    const timer = everyMs && setInterval(() => !document.hidden && read(), everyMs);
    again.current = read;
    read();
    return () => {
      over = true;
      clearInterval(timer);
    };
  }, [path, everyMs, when]);
  return found.path === path ? { ...found, again: again.current } : { again: again.current };
}
