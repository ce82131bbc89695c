# SPDX-License-Identifier: Apache-2.0
"""The measured values by case, subject (an allocator, or another object) and parameters, one for each repetition.

A value that a repetition did not bring is None, so that values of one repetition can be compared: ratio() divides within
repetitions and takes the median afterwards. The document that document() makes is described by ../results.schema.json."""
import re
import statistics

SCHEMA_VERSION = 2


def without_folders(text):
    """A program's text about files, with the files' names alone."""
    return re.sub(r"/(?:[\w.+-]+/)+", "", text).strip()


class Record:
    """One row: its values are lists, an element for each repetition."""

    def __init__(self, case, subject, parameters):
        self.case, self.subject, self.parameters = case, subject, dict(parameters)
        self.values = {}

    def median(self, name):
        """Over the repetitions that have the value; None where none has."""
        present = [value for value in self.values.get(name, []) if value is not None]
        return statistics.median(present) if present else None

    def most(self, name):
        """Of the repetitions; None where none has the value."""
        return max((value for value in self.values.get(name, []) if value is not None), default=None)

    def total(self, name):
        return sum(value for value in self.values.get(name, []) if value is not None)

    def document(self):
        return {"case": self.case, "subject": self.subject, "parameters": self.parameters, "values": self.values,
                "medians": {name: self.median(name) for name in self.values}}


class Results:
    def __init__(self):
        self.repetitions = 0
        self.records = {}
        self.absent = []  # what could not be measured, and why
        self.failed = []

    def add(self, repetition, case, subject, parameters, values):
        key = (case, subject, tuple(sorted(parameters.items())))
        record = self.records.setdefault(key, Record(case, subject, parameters))
        self.repetitions = max(self.repetitions, repetition + 1)
        for name, value in values.items():
            column = record.values.setdefault(name, [])
            column.extend([None] * (repetition + 1 - len(column)))
            column[repetition] = value

    def add_absent(self, case, subject, why):
        entry = {"case": case, "subject": subject, "why": without_folders(why)}
        if entry not in self.absent:
            self.absent.append(entry)

    def add_failed(self, case, subject, why):
        self.failed.append({"case": case, "subject": subject, "why": without_folders(why)})

    def find(self, case, subject=None, **parameters):
        """The records of a case, by subject and parameters as far as they are given."""
        return [record for record in self.records.values()
                if record.case == case and subject in (None, record.subject)
                and all(record.parameters.get(name) == value for name, value in parameters.items())]

    def one(self, case, subject, **parameters):
        """The record, or None unless there is exactly one."""
        found = self.find(case, subject, **parameters)
        return found[0] if len(found) == 1 else None

    def median(self, name, case, subject, **parameters):
        record = self.one(case, subject, **parameters)
        return record.median(name) if record else None

    @staticmethod
    def ratio(left, left_name, right, right_name):
        """The median of the repetitions' own ratios; None where no repetition has both."""
        if left is None or right is None:
            return None
        pairs = zip(left.values.get(left_name, []), right.values.get(right_name, []))
        ratios = [a / b for a, b in pairs if a is not None and b]
        return statistics.median(ratios) if ratios else None

    def with_others(self, documents):
        """These results, and of other runs' documents the records whose case and subject have none here. Shares the records."""
        merged = Results()
        merged.absent, merged.failed = self.absent, self.failed
        here = {(record.case, record.subject) for record in self.records.values()}
        for document in documents:
            for key, record in Results.from_document(document).records.items():
                if (record.case, record.subject) not in here:
                    merged.records[key] = record
        merged.records.update(self.records)
        merged.repetitions = max([self.repetitions, *(document["repetitions"] for document in documents)])
        return merged

    def document(self, **rest):
        for record in self.records.values():
            for column in record.values.values():
                while column and column[-1] is None:
                    column.pop()
        return {"schema": SCHEMA_VERSION, **rest, "repetitions": self.repetitions,
                "records": [record.document() for record in self.records.values()], "absent": self.absent,
                "failed": self.failed}

    @classmethod
    def joined(cls, documents):
        """The records of several runs of the same on machines of the same kind: each run's repetitions follow those of the run before."""
        results = cls()
        for document in documents:
            first, run = results.repetitions, cls.from_document(document)
            for record in run.records.values():
                for repetition in range(max(map(len, record.values.values()))):
                    values = {name: column[repetition] for name, column in record.values.items() if repetition < len(column)}
                    results.add(first + repetition, record.case, record.subject, record.parameters, values)
            results.repetitions = first + run.repetitions
            results.absent += run.absent
            results.failed += run.failed
        return results

    @classmethod
    def from_document(cls, document):
        results = cls()
        for row in document["records"]:
            for repetition in range(max(map(len, row["values"].values()), default=0)):
                values = {name: column[repetition] for name, column in row["values"].items() if repetition < len(column)}
                results.add(repetition, row["case"], row["subject"], row["parameters"], values)
        results.repetitions = document["repetitions"]
        results.absent, results.failed = list(document["absent"]), list(document["failed"])
        return results
