"""Writes the function library as a C array: embed.py OUT.c NAME IN.lua..."""
import sys

out, name, parts = sys.argv[1], sys.argv[2], sys.argv[3:]
body = b"".join(open(part, "rb").read() for part in parts) + b"\0"
with open(out, "w") as file:
    file.write("/* Made from the .lua files beside redis.c. */\n")
    file.write('#include "store/redis_lua.h"\n\n')
    file.write("const char %s[] = {" % name)
    for at, byte in enumerate(body):
        file.write("%s%d," % ("\n    " if at % 20 == 0 else " ", byte))
    file.write("\n};\n")
