"""A bolt: words of lines."""

from by_hand import begin, command, emit, say

begin()
while True:
    given = command()
    for word in given["tuple"][0].split():
        emit([word], anchors=[given["id"]])
    say(command="ack", id=given["id"])
