"""Writes files, one after the other, as a C array of text: embed.py OUT.c NAME HEADER IN..."""
import sys

out, name, header, parts = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
body = b"".join(open(part, "rb").read() for part in parts) + b"\0"
with open(out, "w") as file:
    file.write("/* Made by embed.py. */\n")
    file.write('#include "%s"\n\n' % header)
    file.write("const char %s[] = {" % name)
    for at, byte in enumerate(body):
        file.write("%s%d," % ("\n    " if at % 20 == 0 else " ", byte))
    file.write("\n};\n")
