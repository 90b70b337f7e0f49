from django.db import models


class Customer(models.Model):
    email = models.EmailField(unique=True)
    credit = models.PositiveIntegerField(default=10_000)


class Order(models.Model):
    customer = models.ForeignKey(Customer, models.CASCADE)
    cents = models.PositiveIntegerField()
    booked = models.BooleanField(default=False)


class Mail(models.Model):
    order = models.ForeignKey(Order, models.CASCADE, related_name="mails")
    content = models.TextField()
