"""A bolt on Storm's own library: how often a word has come so far."""

import storm


class Count(storm.BasicBolt):
    def initialize(self, conf, context):
        self.counts = {}

    def process(self, tup):
        word = tup.values[0]
        self.counts[word] = self.counts.get(word, 0) + 1
        storm.emit([word, self.counts[word]])


Count().run()
