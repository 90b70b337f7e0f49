"""Faults in what the outbox does for Django."""

from tests.mutants import Fault

DJANGO = "outbox_tasks/django/"
BACKEND, RESULTS, RUN, CHECKS = (DJANGO + name for name in ("backend.py", "results.py", "run.py", "checks.py"))
PROJECT = "outbox_tasks/settings/django_project.py"
TASKS = "tests/integration/test_django_tasks.py"
TESTS = "tests/integration/test_django.py"

FAULTS = [
    Fault(BACKEND, "            due = timezone.make_aware(due)\n",
        "            due = timezone.make_aware(due, timezone.get_fixed_timezone(0))\n", TASKS,
        "a task of a project without time zones is due at another hour"),
    Fault(BACKEND, "        if call.backend != self.alias:\n            raise TaskResultDoesNotExist(result_id)\n", "",
        TASKS, "a backend shows the results of another one"),
    Fault(RESULTS, "moment if settings.USE_TZ else timezone.make_naive(moment)", "moment", TASKS,
        "times of a project without time zones can't be compared"),
    Fault(RESULTS, 'entry["what"] not in ("returned", "retried")', 'entry["what"] != "returned"', TASKS,
        "a run that Celery repeats counts as an error"),
    Fault(RUN, "        supervised.keeps_value = True\n", "        pass\n", TASKS, "no result is kept"),
    Fault(RUN, "        raise\n", "        return None\n", TASKS, "a task that failed counts as done"),
    Fault(PROJECT, "        port = int(port) if port else None\n    except ValueError:",
        "        port = int(port) if port else None\n    except TypeError:", TESTS + " -k port",
        "a wrong port in DATABASES is a bare ValueError"),
    Fault(PROJECT, 're.sub(r"([\\\\\\s])", r"\\\\\\1", role)', "role", TESTS + " -k assumed_role",
        "a role with a blank can't be assumed"),
    Fault(CHECKS, "        if two.breaks:\n", "        if not two.breaks:\n",
        TESTS + " -k another_database_than_the_project", "nobody is told that two settings name two databases"),
]  # fmt: skip
